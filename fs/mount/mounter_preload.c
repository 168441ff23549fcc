/*
 * Whether readers of a mount get the library that reads without it, and by which variables.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cleanup.h"
#include "filters.h"
#include "image.h"
#include "mounter.h"
#include "preload.h"

const bool mounter_has_library = true;

/*
 * Do readers get it for this mount? A mount outside that offers it keeps its readers. Only an
 * environment that names no safe place is news to those who did not ask for the library.
 */
static bool find_library(const struct mounter *m, char ret_library[PATH_MAX])
{
    char why[PRELOAD_WHY_MAX];
    bool is_asked = m->options->intercept == INTERCEPT_ON;

    if (m->options->intercept == INTERCEPT_OFF)
        return false;
    if (!atomic_load(&m->slot->counters->direct_is_offered)) {
        if (is_asked)
            cli_note("%s: it is read through the mount: the archive is not on this node, or an "
                     "option needs the daemon to see all reads",
                     m->options->archive);
        if (!getenv(PRELOAD_VARIABLE))
            return false;
    }
    int r = preload_find(ret_library, why);
    if (r < 0)
        cli_note("%s: it is read through the mount: no place for libonepot-io.so: %s",
                 m->options->archive, why);
    return r == 0;
}

/* This process's filters (filters.h), for programs that are started by it. */
static int filters_value(char **ret_value)
{
    long count = filters_count();
    *ret_value = NULL;
    return count > 0 && asprintf(ret_value, "%ld", count) < 0 ? -ENOMEM : 0;
}

/*
 * A shell does not leave the library out for a program with the address sanitizer in a shared
 * library, which then has to be told that it does not come first. Run does.
 */
static int sanitizer_value(bool is_told, char **ret_value)
{
    static const char word[] = "verify_asan_link_order=0";
    const char *now = getenv("ASAN_OPTIONS"), *before = now ? now : "";

    *ret_value = NULL;
    if (!now && !is_told)
        return 0;
    bool is_added = is_told && !strstr(before, word);
    return asprintf(ret_value, "%s%s%s", before, is_added && *before ? ":" : "",
                    is_added ? word : "") < 0
               ? -ENOMEM
               : 0;
}

int mounter_preload(const struct mounter *m, const char *command,
                    struct mounter_variable ret[MOUNTER_VARIABLES])
{
    char library[PATH_MAX];
    auto_free char *unsafe = NULL, *preload = NULL, *path = NULL, *layer = NULL;
    const char *now = getenv("LD_PRELOAD");
    bool has_library = find_library(m, library);
    /* A command that can't load it may start others that can. */
    bool is_named =
        has_library && (!command || image_takes_library(AT_FDCWD, command, true, false));
    int r = preload_value(is_named ? library : NULL, now, &preload, &unsafe);

    if (r == 0 && has_library && !(path = strdup(library)))
        r = -ENOMEM;
    if (r == 0 && has_library && m->options->writable &&
        !(layer = strdup(m->slot->counters->direct_id)))
        r = -ENOMEM;
    if (r == 0)
        r = filters_value(&ret[2].value);
    if (r == 0)
        r = sanitizer_value(has_library && !command, &ret[3].value);
    if (r < 0)
        return r;
    if (unsafe)
        cli_note("%s is left out of LD_PRELOAD: another user could put a file there", unsafe);
    ret[0] = (struct mounter_variable){"LD_PRELOAD", *preload ? steal_ptr(&preload) : NULL};
    ret[1] = (struct mounter_variable){PRELOAD_VARIABLE, steal_ptr(&path)};
    ret[2].name = FILTERS_VARIABLE;
    ret[3].name = "ASAN_OPTIONS";
    ret[4].value = steal_ptr(&layer);
    ret[4].name = ret[4].value ? LAYER_VARIABLE : NULL;
    return 0;
}
