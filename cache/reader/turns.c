/*
 * A counting semaphore whose count may change while it is in use.
 */
#include "turns.h"

void turns_init(struct turns *turns)
{
    *turns = (struct turns){0};
    pthread_mutex_init(&turns->lock, NULL);
    pthread_cond_init(&turns->ended, NULL);
}

void turns_free(struct turns *turns)
{
    pthread_cond_destroy(&turns->ended);
    pthread_mutex_destroy(&turns->lock);
}

void turns_limit(struct turns *turns, unsigned most)
{
    pthread_mutex_lock(&turns->lock);
    turns->most = most;
    pthread_cond_broadcast(&turns->ended);
    pthread_mutex_unlock(&turns->lock);
}

static bool turns_are_free(const struct turns *turns)
{
    return turns->most == 0 || turns->taken < turns->most;
}

bool turns_try(struct turns *turns)
{
    pthread_mutex_lock(&turns->lock);
    bool took = turns_are_free(turns);
    turns->taken += took;
    pthread_mutex_unlock(&turns->lock);
    return took;
}

void turns_take(struct turns *turns)
{
    pthread_mutex_lock(&turns->lock);
    while (!turns_are_free(turns))
        pthread_cond_wait(&turns->ended, &turns->lock);
    turns->taken++;
    pthread_mutex_unlock(&turns->lock);
}

void turns_end(struct turns *turns)
{
    pthread_mutex_lock(&turns->lock);
    turns->taken--;
    pthread_cond_signal(&turns->ended);
    pthread_mutex_unlock(&turns->lock);
}
