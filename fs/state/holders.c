#include "holders.h"

#include <errno.h>
#include <stdbool.h>
#include <time.h>
#include <unistd.h>

#include "owner.h"
#include "process.h"

#define ANCESTORS_MAX 1000

/* In the unit and from the start of process_facts.start_ticks. */
static uint64_t holders_now(void)
{
    struct timespec t;
    uint64_t ticks = (uint64_t)sysconf(_SC_CLK_TCK);
    clock_gettime(CLOCK_BOOTTIME, &t);
    return (uint64_t)t.tv_sec * ticks + (uint64_t)t.tv_nsec * ticks / 1000000000;
}

static bool is_process(const struct counter_owner *one, const struct process_facts *facts)
{
    return one->pid == facts->pid && one->start_ticks == facts->start_ticks;
}

static bool holds(const struct counter_holder *holder)
{
    return holder->program.pid && !holder->is_given_back;
}

static bool holder_lives(const struct counter_owner *one)
{
    return one->pid && process_lives(one->pid, one->start_ticks);
}

/* The number of one that this program holds since `latest` or before; -ENOENT. */
static int holders_of_program(const struct counters *c, const struct process_facts *program,
                              uint64_t latest)
{
    for (int i = 0; i < COUNTERS_HOLDERS; i++)
        if (holds(&c->holder[i]) && is_process(&c->holder[i].program, program) &&
            c->holder[i].since_ticks <= latest)
            return i;
    return -ENOENT;
}

static bool has_given_back(const struct counters *c, const struct process_facts *program)
{
    for (int i = 0; i < COUNTERS_HOLDERS; i++)
        if (c->holder[i].is_given_back && is_process(&c->holder[i].program, program))
            return true;
    return false;
}

/* The number of one that the program above holds, or one above that; -EPERM. */
static int holders_above(const struct counters *c)
{
    struct process_facts program = {.pid = getpid()};
    uint64_t latest = UINT64_MAX;

    for (int i = 0; i < ANCESTORS_MAX && process_program(program.pid, true, &program) == 0;
         i++) {
        int number = holders_of_program(c, &program, latest);
        if (number >= 0)
            return number;
        if (has_given_back(c, &program))
            return -EPERM;
        if (program.start_ticks < latest)
            latest = program.start_ticks;
    }
    return -ENOENT;
}

/* The number of one whose program has ended, in this job or session or with its own. */
static int holders_left(const struct counters *c)
{
    pid_t owner = owner_find();

    for (int i = 0; i < COUNTERS_HOLDERS; i++) {
        const struct counter_holder *holder = &c->holder[i];
        if (holds(holder) && !holder_lives(&holder->program) &&
            (!holder_lives(&holder->owner) || holder->owner.pid == owner))
            return i;
    }
    return -EPERM;
}

/* The number of a holder whose share this process may give back. -EPERM: there is none. */
static int holders_find(const struct counters *c)
{
    if (c->pid_namespace != process_namespace())
        return COUNTERS_HOLDERS;
    int number = holders_above(c);
    if (number == -ENOENT)
        number = holders_left(c);
    return number < 0 && c->holders_beyond ? COUNTERS_HOLDERS : number;
}

/* A process that holds the mount, or the owner of one that has ended; 0: not known. */
static int holders_process(const struct counters *c)
{
    for (int i = 0; i < COUNTERS_HOLDERS; i++)
        if (holds(&c->holder[i]))
            return holder_lives(&c->holder[i].program) ? c->holder[i].program.pid
                                                       : c->holder[i].owner.pid;
    return 0;
}

/* A place that is free, or else one of a program that has given its share back; -ENOENT. */
static int holders_place(const struct counters *c)
{
    int found = -ENOENT;

    for (int i = 0; i < COUNTERS_HOLDERS; i++) {
        if (!c->holder[i].program.pid)
            return i;
        if (c->holder[i].is_given_back)
            found = i;
    }
    return found;
}

int holders_add(struct counters *c)
{
    struct process_facts program, owner = {0};
    int number = holders_place(c);

    atomic_fetch_add(&c->holders, 1);
    if (number < 0 || c->pid_namespace != process_namespace() ||
        process_program(getpid(), true, &program) < 0) {
        c->holders_beyond++;
        return COUNTERS_HOLDERS;
    }
    pid_t pid = owner_find();
    if (pid && process_look(pid, &owner) < 0)
        owner = (struct process_facts){0};
    c->holder[number] = (struct counter_holder){
        .program = {program.pid, program.start_ticks},
        .owner = {owner.pid, owner.start_ticks},
        .since_ticks = holders_now(),
    };
    return number;
}

static void give_back(struct counters *c, int number)
{
    if (number < COUNTERS_HOLDERS)
        c->holder[number].is_given_back = 1;
    else if (c->holders_beyond)
        c->holders_beyond--;
    atomic_fetch_sub(&c->holders, 1);
}

int holders_give_back(struct counters *c, int *ret_pid)
{
    uint32_t holders = atomic_load(&c->holders);
    int number = holders_find(c);

    *ret_pid = holders_process(c);
    if (number < 0)
        return number;
    if (holders > 1)
        give_back(c, number);
    return (int)holders - 1;
}

void holders_end(struct counters *c)
{
    for (int i = 0; i < COUNTERS_HOLDERS; i++)
        if (holds(&c->holder[i]))
            c->holder[i].is_given_back = 1;
    c->holders_beyond = 0;
    atomic_store(&c->holders, 0);
}

void holders_remove(struct counters *c, int number)
{
    give_back(c, number);
    if (number < COUNTERS_HOLDERS)
        c->holder[number] = (struct counter_holder){0};
}
