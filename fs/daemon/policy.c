#include "policy.h"

#include <fcntl.h>
#include <sched.h>
#include <stdlib.h>
#include <unistd.h>

#include "clock.h"

#define REQUESTS 8u     /* requests between two looks, a microsecond each */
#define LONG_NS 200000u /* so long a wait for one turn means that others keep the CPU busy */
#define FIRST_NS UINT64_C(100000000)
#define LAST_NS UINT64_C(64000000000)

/* If the CPU was busy again at once, SCHED_BATCH is tried half as often. */
bool policy_is_ordinary(struct policy *p, uint64_t at_ns, uint64_t waited_ns, uint64_t turns)
{
    uint64_t wait = waited_ns - p->waited_ns, count = turns - p->turns;

    p->waited_ns = waited_ns;
    p->turns = turns;
    if (!p->for_ns) {
        p->for_ns = FIRST_NS;
        p->until_ns = at_ns + FIRST_NS;
    }
    if (p->until_ns && at_ns < p->until_ns)
        return true;
    if (p->until_ns) {
        p->until_ns = 0;
        p->tried_ns = at_ns;
        return false;
    }
    if (!count || wait / count < LONG_NS)
        return false;
    p->for_ns = at_ns - p->tried_ns < p->for_ns ? p->for_ns * 2 : FIRST_NS;
    if (p->for_ns > LAST_NS)
        p->for_ns = LAST_NS;
    p->until_ns = at_ns + p->for_ns;
    return true;
}

/* "12345 678 90": time run, time waited, turns. */
static bool look(const struct policy *p, uint64_t *ret_waited_ns, uint64_t *ret_turns)
{
    char text[80], *at;
    ssize_t n = pread(p->stat_fd, text, sizeof(text) - 1, 0);

    if (n <= 0)
        return false;
    text[n] = '\0';
    strtoull(text, &at, 10);
    *ret_waited_ns = strtoull(at, &at, 10);
    *ret_turns = strtoull(at, &at, 10);
    return *ret_turns > 0;
}

static void set(bool ordinary)
{
    const struct sched_param param = {0};

    sched_setscheduler(0, ordinary ? SCHED_OTHER : SCHED_BATCH, &param);
}

void policy_begin(struct policy *p)
{
    *p = (struct policy){
        .stat_fd = open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC),
    };
    if (p->stat_fd >= 0 && !look(p, &p->waited_ns, &p->turns))
        policy_end(p);
}

void policy_end(struct policy *p)
{
    if (p->stat_fd >= 0)
        close(p->stat_fd);
    p->stat_fd = -1;
}

void policy_after_request(struct policy *p)
{
    uint64_t waited_ns, turns;
    bool was = p->until_ns || !p->for_ns, is;

    if (p->stat_fd < 0 || ++p->requests % REQUESTS)
        return;
    if (!look(p, &waited_ns, &turns))
        return;
    is = policy_is_ordinary(p, now_ns(), waited_ns, turns);
    if (is != was)
        set(is);
}
