/*
 * A program without the preloaded library (-Dpreload=disabled): readers use the mount.
 */
#include <string.h>

#include "mounter.h"

const bool mounter_has_library = false;

int mounter_preload(const struct mounter *m, const char *command,
                    struct mounter_variable ret[MOUNTER_VARIABLES])
{
    (void)command;
    memset(ret, 0, MOUNTER_VARIABLES * sizeof(*ret));
    if (m->options->intercept == INTERCEPT_ON)
        cli_note("%s: it is read through the mount: this onepot was built without another way",
                 m->options->archive);
    return 0;
}
