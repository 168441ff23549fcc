/*
 * Whether readers of a mount get the library that reads without it.
 */
#include <errno.h>
#include <stdlib.h>

#include "cleanup.h"
#include "mounter.h"
#include "preload.h"

/* Why not; NULL: the library is at `ret_library`. */
static const char *find_library(const struct mounter *m, char ret_library[PATH_MAX])
{
    char path[PATH_MAX];

    if (!atomic_load(&m->slot->counters->direct_is_offered))
        return "the archive is not on this node, or an option needs the daemon to see all "
               "reads";
    slot_library(m->slot, path);
    int r = preload_find(path, ret_library);
    if (r == -ENOEXEC)
        return "where its state is, programs can't be run";
    return r < 0 ? fault_errno(r) : NULL;
}

int mounter_preload(const struct mounter *m, char **ret_value)
{
    char library[PATH_MAX];

    *ret_value = NULL;
    if (m->options->intercept == INTERCEPT_OFF)
        return 0;
    const char *why = find_library(m, library);
    if (why && m->options->intercept == INTERCEPT_ON)
        cli_note("%s: it is read through the mount: %s", m->options->archive, why);
    return why ? 0 : preload_value(library, getenv("LD_PRELOAD"), ret_value);
}
