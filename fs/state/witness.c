/*
 * A witness is forked and never executes: it holds no descriptor, no directory, and no more
 * memory than the pages of its stack. It could take a pending signal only when it runs, so
 * another takes its place to forget one.
 */
#include "witness.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "process.h"
#include "syscalls.h"

static _Noreturn void witness_main(const struct witness *witness, pid_t maker)
{
    sigset_t all;
    sigfillset(&all);
    sigprocmask(SIG_BLOCK, &all, NULL);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != maker || chdir("/") < 0)
        _exit(0);
    if (!witness->in_group) {
        setpgid(0, 0);
        for (int number = 1; number < NSIG; number++)
            signal(number, SIG_IGN); /* forgets the group's signals meanwhile */
    }
    prctl(PR_SET_NAME, "signal-witness");
    if (witness->hidden)
        memset(witness->hidden, 0, witness->hidden_len);
    syscall_close_range(0, ~0u); /* pipes and locks of its maker; and says that it is ready */
    for (;;)
        pause();
}

void witness_start(struct witness *witness)
{
    pid_t maker = getpid();
    int ready[2];
    char ignored;
    witness->pid = 0;
    if (pipe2(ready, O_CLOEXEC) < 0)
        return;
    pid_t pid = fork();
    if (pid == 0)
        witness_main(witness, maker);
    close(ready[1]);
    while (pid > 0 && read(ready[0], &ignored, 1) < 0 && errno == EINTR)
        ;
    close(ready[0]);
    witness->pid = pid > 0 ? pid : 0;
}

void witness_end(struct witness *witness)
{
    if (witness->pid)
        process_discard(witness->pid);
    witness->pid = 0;
}

/* The signals that it has got, as a set. */
static uint64_t witness_pending(const struct witness *witness)
{
    uint64_t pending;
    return witness->pid && process_status_number(witness->pid, "\nShdPnd:", 16, &pending)
               ? pending
               : 0;
}

bool witness_saw(const struct witness *witness, int number)
{
    return (witness->earlier | witness_pending(witness)) >> (number - 1) & 1;
}

/* The new one begins before the old one ends, so that no signal comes between. */
void witness_forget(struct witness *witness, int number)
{
    struct witness before = *witness;
    witness_start(witness);
    witness->earlier |= witness_pending(&before);
    witness->earlier &= ~(UINT64_C(1) << (number - 1));
    witness_end(&before);
}
