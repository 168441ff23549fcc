#include "helpers.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>

#include "thread.h"

#define STACK_BYTES (256u << 10)

struct helpers {
    pthread_mutex_t lock;
    pthread_cond_t begun, done;
    struct helper_task *first; /* of the waiting ones */
    bool is_ending;
    unsigned count, ready;
    pthread_t threads[];
};

/* With the lock held, which is given up while the task runs. */
static void helpers_run_first(struct helpers *helpers)
{
    struct helper_task *task = helpers->first;
    helpers->first = task->next;
    task->state = HELPER_RUNS;
    pthread_mutex_unlock(&helpers->lock);
    task->run(task);
    pthread_mutex_lock(&helpers->lock);
    task->state = HELPER_DONE;
    pthread_cond_broadcast(&helpers->done);
}

static void *helpers_work(void *arg)
{
    struct helpers *helpers = arg;
    pthread_mutex_lock(&helpers->lock);
    helpers->ready++;
    pthread_cond_broadcast(&helpers->done);
    while (!helpers->is_ending)
        if (helpers->first)
            helpers_run_first(helpers);
        else
            pthread_cond_wait(&helpers->begun, &helpers->lock);
    pthread_mutex_unlock(&helpers->lock);
    return NULL;
}

int helpers_new(unsigned threads, struct helpers **ret_helpers)
{
    struct helpers *helpers =
        calloc(1, sizeof(*helpers) + threads * sizeof(helpers->threads[0]));
    if (!helpers)
        return -ENOMEM;
    pthread_mutex_init(&helpers->lock, NULL);
    pthread_cond_init(&helpers->begun, NULL);
    pthread_cond_init(&helpers->done, NULL);
    while (helpers->count < threads && thread_start(&helpers->threads[helpers->count],
                                                    STACK_BYTES, helpers_work, helpers) == 0)
        helpers->count++;
    pthread_mutex_lock(&helpers->lock);
    while (helpers->ready < helpers->count)
        pthread_cond_wait(&helpers->done, &helpers->lock);
    pthread_mutex_unlock(&helpers->lock);
    *ret_helpers = helpers;
    return 0;
}

void helpers_free(struct helpers *helpers)
{
    if (!helpers)
        return;
    pthread_mutex_lock(&helpers->lock);
    helpers->is_ending = true;
    pthread_cond_broadcast(&helpers->begun);
    pthread_mutex_unlock(&helpers->lock);
    for (unsigned i = 0; i < helpers->count; i++)
        pthread_join(helpers->threads[i], NULL);
    pthread_cond_destroy(&helpers->done);
    pthread_cond_destroy(&helpers->begun);
    pthread_mutex_destroy(&helpers->lock);
    free(helpers);
}

unsigned helpers_threads(const struct helpers *helpers)
{
    return helpers ? helpers->count : 0;
}

void helpers_begin(struct helpers *helpers, struct helper_task *task)
{
    task->state = HELPER_NEW;
    task->next = NULL;
    if (!helpers)
        return;
    pthread_mutex_lock(&helpers->lock);
    struct helper_task **end = &helpers->first;
    while (*end)
        end = &(*end)->next;
    *end = task;
    task->state = HELPER_WAITS;
    pthread_cond_signal(&helpers->begun);
    pthread_mutex_unlock(&helpers->lock);
}

void helpers_finish(struct helpers *helpers, struct helper_task *task)
{
    if (!helpers) {
        if (task->state == HELPER_NEW)
            task->run(task);
        task->state = HELPER_DONE;
        return;
    }
    pthread_mutex_lock(&helpers->lock);
    while (task->state != HELPER_DONE)
        if (helpers->first)
            helpers_run_first(helpers);
        else
            pthread_cond_wait(&helpers->done, &helpers->lock);
    pthread_mutex_unlock(&helpers->lock);
}

void helpers_cancel(struct helpers *helpers, struct helper_task *task)
{
    if (!helpers)
        return;
    pthread_mutex_lock(&helpers->lock);
    for (struct helper_task **at = &helpers->first; *at; at = &(*at)->next)
        if (*at == task) {
            *at = task->next;
            task->state = HELPER_DONE;
            break;
        }
    while (task->state == HELPER_RUNS)
        pthread_cond_wait(&helpers->done, &helpers->lock);
    pthread_mutex_unlock(&helpers->lock);
}
