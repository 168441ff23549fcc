/*
 * Recognizes magic numbers only: nothing acts on the answer.
 */
#include "unknown_format.h"

#include <errno.h>
#include <string.h>

#include "backend.h"

#define TAR_MAGIC_AT 257u
#define SQUASHFS_VERSION_AT 28u /* two numbers of two bytes, in the image's byte order */

#define PACK "make an archive of it: onepot pack -o NEW.tar FILE"
#define COPY "copy its files out and pack them"
#define OFFSET "where one is, say where it begins: --offset=BYTES"

/* clang-format off */
static const struct unknown {
    size_t at;
    const char *magic;
    size_t len;
    const char *container; /* only `onepot pack` takes it, by this name; NULL: nothing does */
    const char *what, *advice; /* advice NULL: which formats are known */
} formats[] = {
    {1024, "\xe2\xe1\xf5\xe0", 4, NULL, "is an EROFS image", COPY},
    {1080, "\x53\xef", 2, NULL, "is an image of ext2, ext3 or ext4", COPY},
    {0, "7z\xbc\xaf\x27\x1c", 6, "7z", "is a 7z archive", PACK},
    {0, "Rar!\x1a\x07", 6, "rar", "is a RAR archive", PACK},
    {32769, "CD001", 5, "iso9660", "is an ISO 9660 image", PACK},
    {0, "070701", 6, "cpio", "is a cpio archive", PACK},
    {0, "070702", 6, "cpio", "is a cpio archive", PACK},
    {0, "070707", 6, "cpio", "is a cpio archive", PACK},
    {0, "\xc7\x71", 2, "cpio", "is a cpio archive", PACK},
    {0, "!<arch>\n", 8, "ar", "is an ar archive", PACK},
    {0, "MSCF\0\0\0\0", 8, "cab", "is a cabinet file", PACK},
    {0, "WARC/", 5, "warc", "is a WARC file", PACK},
    {0, "xar!", 4, "xar", "is a xar archive", PACK},
    {0, NULL, 0, "lha", "is an LHA archive", PACK}, /* unknown_is_lha */
    {0, "\x89HDF\r\n\x1a\n", 8, NULL, "is an HDF5 file", NULL},
    {0, "#!", 2, NULL, "is a script, without an archive that could be found behind it", OFFSET},
    {0, "\177ELF", 4, NULL, "is a program, without an archive that could be found behind it",
     OFFSET},
};
/* clang-format on */

static bool unknown_has_magic(const uint8_t *head, size_t head_len, size_t at,
                              const char *magic, size_t len)
{
    return head_len >= at + len && memcmp(head + at, magic, len) == 0;
}

void unknown_format_advise(struct fault *fault)
{
    char list[BACKEND_LIST_BYTES];
    backend_list(true, list);
    fault_advise(fault, "give %s", list);
}

/* Before 4.0, SquashFS had two byte orders. */
static bool unknown_describe_squashfs(const uint8_t *head, size_t head_len, struct fault *fault)
{
    const uint8_t *v = head + SQUASHFS_VERSION_AT;
    bool big = unknown_has_magic(head, head_len, 0, "sqsh", 4);
    if (head_len < SQUASHFS_VERSION_AT + 4 ||
        (!big && !unknown_has_magic(head, head_len, 0, "hsqs", 4)))
        return false;
    unsigned major = big ? v[0] << 8 | v[1] : v[1] << 8 | v[0];
    unsigned minor = big ? v[2] << 8 | v[3] : v[3] << 8 | v[2];
    if (major < 1 || major > 3)
        return false;
    fault_set_advised(fault, -ENOMSG, NULL, FAULT_NO_OFFSET,
                      "unpack it with unsquashfs and make it anew with mksquashfs",
                      "is a SquashFS image of version %u.%u, not 4.0", major, minor);
    return true;
}

bool unknown_format_is_tar_header(const uint8_t bytes[UNKNOWN_TAR_BYTES])
{
    return bytes[0] && backend_tar.probe(NULL, bytes, UNKNOWN_TAR_BYTES) == 1;
}

/* A damaged tar is known by the magic of its first header, or by a later header in `head`. */
bool unknown_format_is_tar(const uint8_t *head, size_t head_len)
{
    bool is_tar = unknown_has_magic(head, head_len, TAR_MAGIC_AT, "ustar", 5);
    for (size_t at = UNKNOWN_TAR_BYTES; !is_tar && head_len >= at + UNKNOWN_TAR_BYTES;
         at += UNKNOWN_TAR_BYTES)
        is_tar = unknown_format_is_tar_header(head + at);
    return is_tar;
}

static bool unknown_describe_tar(const uint8_t *head, size_t head_len, struct fault *fault)
{
    if (!unknown_format_is_tar(head, head_len))
        return false;
    fault_set_advised(fault, -ENOMSG, NULL, 0, "make the archive again, or copy it again",
                      "is a tar whose first header is damaged");
    return true;
}

/* "-lh5-" behind the length and the sum of the header, and its level. */
static bool unknown_is_lha(const uint8_t *head, size_t head_len)
{
    return head_len > 20 && memcmp(head + 2, "-l", 2) == 0 && memchr("hz", head[4], 2) &&
           head[6] == '-' && head[20] <= 3;
}

/* A container's content may have the few bytes of an image where one has them. */
static const struct unknown *unknown_find(const uint8_t *head, size_t head_len,
                                          bool containers_only)
{
    for (size_t i = 0; i < sizeof(formats) / sizeof(*formats); i++) {
        const struct unknown *f = &formats[i];
        if (containers_only && !f->container)
            continue;
        if (f->magic ? unknown_has_magic(head, head_len, f->at, f->magic, f->len)
                     : unknown_is_lha(head, head_len))
            return f;
    }
    return NULL;
}

const char *unknown_format_container(const uint8_t *head, size_t head_len)
{
    const struct unknown *found = unknown_find(head, head_len, true);
    return found ? found->container : NULL;
}

bool unknown_format_describe(const uint8_t *head, size_t head_len, struct fault *fault)
{
    if (unknown_describe_squashfs(head, head_len, fault))
        return true;
    const struct unknown *found = unknown_find(head, head_len, false);
    if (!found)
        return unknown_describe_tar(head, head_len, fault);
    fault_set(fault, -ENOMSG, NULL, FAULT_NO_OFFSET, "%s", found->what);
    if (found->advice)
        fault_advise(fault, "%s", found->advice);
    else
        unknown_format_advise(fault);
    return true;
}
