/*
 * A terminal that is drawn over and over: `onepot top`. Plain ANSI sequences, understood by
 * all terminals of today; what was on the screen before is there again afterwards.
 */
#ifndef ONEPOT_SCREEN_H
#define ONEPOT_SCREEN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <termios.h>

struct screen {
    bool on;
    bool has_keys; /* standard input is a terminal, too */
    struct termios before;
};

/* Standard output must be a terminal. */
void screen_start(struct screen *screen);
void screen_end(struct screen *screen);

/* Show these lines from the top on, as many as there is room for, cut to its width. */
void screen_draw(const char *text, size_t len);

/*
 * Wait for a key: its byte; 0 when the time is over or a signal came (or the size of the
 * terminal changed); -1: there will be no more keys.
 */
int screen_wait_key(const struct screen *screen, uint64_t wait_ns);

#endif
