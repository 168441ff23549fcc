#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>

#include "cli.h"
#include "clock.h"
#include "interrupt.h"

/*
 * timeout(1) and batch systems signal the process and also its group, so two signals in quick
 * succession are one request. A person who asks again later wants an end at any price.
 */
#define SAME_SIGNAL_NS UINT64_C(1000000000)

static _Atomic int flag;

static void interrupt_on_signal(int number)
{
    static _Atomic uint64_t first_ns;
    uint64_t now = now_ns(), first = 0;
    atomic_store(&flag, number);
    if (atomic_compare_exchange_strong(&first_ns, &first, now))
        return;
    /* Two threads may each handle one; then `first` may be the later moment. */
    if (now < first + SAME_SIGNAL_NS)
        return;
    signal(number, SIG_DFL);
    raise(number);
}

void interrupt_handle(void (*handler)(int))
{
    static const int numbers[] = {SIGINT, SIGTERM, SIGHUP};
    struct sigaction action = {.sa_handler = handler}, old;
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
        if (sigaction(numbers[i], NULL, &old) == 0 && old.sa_handler != SIG_IGN)
            sigaction(numbers[i], &action, NULL);
}

void interrupt_catch(void)
{
    interrupt_handle(interrupt_on_signal);
}

void interrupt_note(int number)
{
    atomic_store(&flag, number);
}

const _Atomic int *interrupt_flag(void)
{
    return &flag;
}

void interrupt_die(void)
{
    fflush(NULL);
    interrupt_die_of(atomic_load(&flag));
}

void interrupt_die_of(int number)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, number);
    signal(number, SIG_DFL);
    sigprocmask(SIG_UNBLOCK, &set, NULL);
    raise(number);
}
