/*
 * A number has the digits of its alphabet, and counts as any number does.
 */
#include "volume_names.h"

#include <stdio.h>
#include <string.h>

#include "backend.h"
#include "path.h"

/* Each numbering's. */
static const char *const alphabets[] = {"0123456789", "0123456789abcdef",
                                        "abcdefghijklmnopqrstuvwxyz"};

#define WIDER_BYTES 4u /* a neighbour's name may be longer */

/* How many of the bytes at the end are of this alphabet? */
static size_t series_run(const char *stem, size_t len, enum numbering numbering)
{
    size_t run = 0;
    while (run < len && strchr(alphabets[numbering], stem[len - 1 - run]))
        run++;
    return run;
}

static bool series_read(const char *name, size_t stem, enum suffix suffix,
                        struct series *ret_series)
{
    size_t digits = series_run(name, stem, NUMBERING_DIGITS);
    size_t letters = series_run(name, stem, NUMBERING_LETTERS);
    size_t hex = series_run(name, stem, NUMBERING_HEX);
    enum numbering numbering = digits         ? NUMBERING_DIGITS
                               : letters >= 2 ? NUMBERING_LETTERS
                                              : NUMBERING_HEX;
    size_t run = digits ? digits : letters >= 2 ? letters : hex;
    if (run == 0 || (run == 1 && !digits) || strlen(name) + WIDER_BYTES > STEM_BYTES - 1)
        return false;
    *ret_series = (struct series){numbering, suffix, .same = stem - run, .stem = stem};
    return true;
}

size_t series_of(const char *name, struct series ret_readings[SERIES_READINGS])
{
    size_t len = strlen(name), stem = backend_stem(name, len), count = 0;
    const char *dot = strrchr(name, '.');
    count += series_read(name, stem, stem < len ? SUFFIX_OF_ARCHIVE : SUFFIX_NONE,
                         &ret_readings[count]);
    if (stem == len && dot)
        count += series_read(name, (size_t)(dot - name), SUFFIX_OTHER, &ret_readings[count]);
    return count;
}

bool series_has(const struct series *s, const char *stem, size_t len)
{
    return len > s->same && series_run(stem, len, s->numbering) >= len - s->same;
}

bool series_is_first(const struct series *s, const char *stem)
{
    size_t len = strlen(stem), run = len - s->same;
    if (s->numbering == NUMBERING_LETTERS)
        return strcmp(stem + len - 2, "aa") == 0;
    if (s->numbering == NUMBERING_HEX) /* letters before the number may look like its own */
        return run >= 2 && stem[len - 2] == '0' &&
               (stem[len - 1] == '0' || stem[len - 1] == '1');
    size_t zeros = strspn(stem + s->same, "0");
    return zeros == run || strcmp(stem + s->same + zeros, "1") == 0;
}

bool series_step(const struct series *s, char *stem, bool up)
{
    const char *alphabet = alphabets[s->numbering];
    size_t last = strlen(alphabet) - 1;
    for (char *c = stem + strlen(stem); c > stem + s->same;) {
        c--;
        size_t digit = (size_t)(strchr(alphabet, *c) - alphabet);
        if (digit != (up ? last : 0)) {
            *c = alphabet[up ? digit + 1 : digit - 1];
            return true;
        }
        *c = alphabet[up ? 0 : last];
    }
    return false;
}

/* split has no further name of this length: two digits more. */
static bool is_wider(const struct series *s, const char *next, size_t len)
{
    const char *alphabet = alphabets[s->numbering];
    return len >= s->same + 2 && next[len - 1] == alphabet[0] &&
           next[len - 2] == alphabet[strlen(alphabet) - 1];
}

static void series_after(const struct series *s, const char *stem, struct neighbours *n)
{
    char *next = n->at[0], zero = alphabets[s->numbering][0];
    size_t len = strlen(stem);
    strcpy(next, stem);
    if (series_step(s, next, true)) {
        n->count = 1;
        if (is_wider(s, next, len))
            n->count += snprintf(n->at[1], sizeof(n->at[1]), "%.*s%c%c", (int)len, next, zero,
                                 zero) > 0;
    } else if (s->numbering == NUMBERING_DIGITS) { /* all of it is zeros now */
        memmove(next + s->same + 1, next + s->same, len - s->same + 1);
        next[s->same] = '1';
        n->count = 1;
    }
}

static void series_before(const struct series *s, const char *stem, struct neighbours *n)
{
    char zero = alphabets[s->numbering][0];
    size_t len = strlen(stem), run = len - s->same;
    strcpy(n->at[0], stem);
    if (!series_step(s, n->at[0], false))
        return;
    n->count = 1;
    if (s->numbering == NUMBERING_DIGITS && run > 1 && n->at[0][s->same] == '0') {
        strcpy(n->at[1], n->at[0]);
        memmove(n->at[1] + s->same, n->at[1] + s->same + 1, run);
        n->count = 2;
    }
    if (run > 3 && stem[len - 1] == zero && stem[len - 2] == zero) {
        char *narrow = n->at[n->count];
        strcpy(narrow, stem);
        narrow[len - 2] = '\0';
        n->count += is_wider(s, narrow, len - 2) && series_step(s, narrow, false);
    }
}

void series_neighbours(const struct series *s, const char *stem, bool up,
                       struct neighbours *ret_neighbours)
{
    ret_neighbours->count = 0;
    (up ? series_after : series_before)(s, stem, ret_neighbours);
}

bool series_hex(const struct series *s, const char *stem, struct series *ret_series,
                char ret_stem[STEM_BYTES])
{
    size_t len = strlen(stem), hex = series_run(stem, len, NUMBERING_HEX);
    if (s->numbering == NUMBERING_HEX || hex < 2)
        return false;
    *ret_series = *s;
    ret_series->numbering = NUMBERING_HEX;
    if (s->numbering == NUMBERING_LETTERS || len - s->same < 2) /* xbe and xc7 of x00 .. xff */
        ret_series->same = len - 2;
    strcpy(ret_stem, stem);
    memset(ret_stem + ret_series->same, '0', len - ret_series->same);
    ret_stem[len - 1] = 'a';
    return true;
}

bool series_is_shard(const char *before, const char *path)
{
    struct series readings[SERIES_READINGS];
    const char *name = before ? path_base(before) : NULL;
    if (!before || strlen(before) != strlen(path) || series_of(name, readings) == 0)
        return false;
    size_t same = (size_t)(name - before) + readings[0].same,
           stem = (size_t)(name - before) + readings[0].stem;
    if (readings[0].numbering == NUMBERING_LETTERS)
        same = stem - 2;
    return strncmp(before, path, same) == 0 && strcmp(before + stem, path + stem) == 0;
}
