/*
 * Findings about the preloaded library. Which programs never use it, nobody else says.
 */
#include <limits.h>

#include "doctor.h"
#include "preload.h"

void doctor_preload(struct findings *f)
{
    static const char subject[] = "libonepot-io.so";
    char path[PATH_MAX], why[PRELOAD_WHY_MAX];
    int r = preload_find(path, why);

    if (r < 0) {
        finding_add(f, FINDING_WARNING, subject,
                    "has no place, so readers under 'onepot run' use the mount alone: %s", why);
        finding_advise(f, "set XDG_CACHE_HOME to a folder that nobody else can write to");
    } else {
        finding_add(f, FINDING_GOOD, subject,
                    "programs under 'onepot run' read without the mount, but for those that "
                    "are linked statically, are set-user-ID, or use another C library");
    }
}
