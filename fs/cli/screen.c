/*
 * Each picture is written at once, from the upper left corner, and each line is cleared after
 * its end, so nothing flickers. The terminal, set not to wrap, truncates lines that are too
 * long.
 */
#include "screen.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#include "clock.h"

#define LINES_UNKNOWN 24

void screen_start(struct screen *screen)
{
    struct termios raw;

    screen->has_keys = tcgetattr(STDIN_FILENO, &screen->before) == 0;
    if (screen->has_keys) {
        raw = screen->before;
        raw.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
        raw.c_cc[VMIN] = 1;
        raw.c_cc[VTIME] = 0;
        /*
         * Keys that end or stop the program without warning would leave the terminal like this.
         */
        raw.c_cc[VQUIT] = raw.c_cc[VSUSP] = _POSIX_VDISABLE;
        tcsetattr(STDIN_FILENO, TCSADRAIN, &raw);
    }
    fputs("\033[?1049h\033[?25l\033[?7l", stdout); /* another screen, no cursor, no wrapping */
    fflush(stdout);
    screen->on = true;
}

void screen_end(struct screen *screen)
{
    if (!screen->on)
        return;
    fputs("\033[?7h\033[?25h\033[?1049l", stdout);
    fflush(stdout);
    if (screen->has_keys)
        tcsetattr(STDIN_FILENO, TCSADRAIN, &screen->before);
    screen->on = false;
}

static unsigned lines_of_terminal(void)
{
    struct winsize size;
    return ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_row > 1 ? size.ws_row
                                                                           : LINES_UNKNOWN;
}

void screen_draw(const char *text, size_t len)
{
    const char *end = text + len;

    fputs("\033[H", stdout);
    for (unsigned left = lines_of_terminal(); text < end && left > 0; left--) {
        const char *newline = memchr(text, '\n', (size_t)(end - text));
        size_t n = (size_t)((newline ? newline : end) - text);
        fwrite(text, 1, n, stdout);
        fputs(left > 1 ? "\033[K\r\n" : "\033[K", stdout);
        text += newline ? n + 1 : n;
    }
    fputs("\033[J", stdout);
    fflush(stdout);
}

int screen_wait_key(const struct screen *screen, uint64_t wait_ns)
{
    struct pollfd p = {.fd = screen->has_keys ? STDIN_FILENO : -1, .events = POLLIN};
    struct timespec t = clock_timespec(wait_ns);
    unsigned char key;

    if (ppoll(&p, 1, &t, NULL) <= 0)
        return 0;
    ssize_t n = read(STDIN_FILENO, &key, 1);
    if (n == 1)
        return key;
    return n < 0 && errno == EINTR ? 0 : -1;
}
