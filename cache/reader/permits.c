/*
 * A counting semaphore whose count may change while it is in use.
 */
#include "permits.h"

void permits_init(struct permits *permits)
{
    *permits = (struct permits){0};
    pthread_mutex_init(&permits->lock, NULL);
    pthread_cond_init(&permits->ended, NULL);
}

void permits_free(struct permits *permits)
{
    pthread_cond_destroy(&permits->ended);
    pthread_mutex_destroy(&permits->lock);
}

void permits_limit(struct permits *permits, unsigned most)
{
    pthread_mutex_lock(&permits->lock);
    permits->most = most;
    pthread_cond_broadcast(&permits->ended);
    pthread_mutex_unlock(&permits->lock);
}

static bool permits_are_free(const struct permits *permits)
{
    return permits->most == 0 || permits->taken < permits->most;
}

bool permits_try(struct permits *permits)
{
    pthread_mutex_lock(&permits->lock);
    bool took = permits_are_free(permits);
    permits->taken += took;
    pthread_mutex_unlock(&permits->lock);
    return took;
}

void permits_take(struct permits *permits)
{
    pthread_mutex_lock(&permits->lock);
    while (!permits_are_free(permits))
        pthread_cond_wait(&permits->ended, &permits->lock);
    permits->taken++;
    pthread_mutex_unlock(&permits->lock);
}

void permits_end(struct permits *permits)
{
    pthread_mutex_lock(&permits->lock);
    permits->taken--;
    pthread_cond_signal(&permits->ended);
    pthread_mutex_unlock(&permits->lock);
}
