/*
 * Tells libarchive that the format is tar.
 *
 * Its function for that refers to all formats that it knows. Where it is linked statically,
 * formats that need libxml2 or nettle are kept out: their names are defined here, before the
 * linker looks for them.
 */
#include <archive.h>

#include "tar_private.h"

void tar_set_format(struct archive *a)
{
    /* libarchive's own guess would reject a time that is not a number. */
    archive_read_set_format(a, ARCHIVE_FORMAT_TAR);
}

#ifdef ONEPOT_LINKS_STATIC

#define NOT_LINKED(name)                                                                       \
    int archive_read_support_format_##name(struct archive *a)                                  \
    {                                                                                          \
        (void)a;                                                                               \
        return ARCHIVE_FATAL;                                                                  \
    }

NOT_LINKED(mtree)
NOT_LINKED(xar)
NOT_LINKED(zip)

#endif
