/*
 * A terminal screen that is redrawn, for `onepot top`. Uses plain ANSI sequences, which all
 * current terminals understand. The earlier screen contents are restored afterwards.
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

/* Show these lines from the top, as many as fit, cut to the terminal's width. */
void screen_draw(const char *text, size_t len);

/*
 * Wait for a key and return its byte; 0 when the time is over or a signal came (or the size of
 * the terminal changed); -1: there will be no more keys.
 */
int screen_wait_key(const struct screen *screen, uint64_t wait_ns);

#endif
