/*
 * Finds the back end that knows a file, or a part of it, as in a container; else says what the
 * file is.
 */
#include "backend.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bytes.h"
#include "cleanup.h"
#include "container.h"
#include "numbers.h"
#include "path.h"

enum {
    HEAD_BYTES = 64 << 10,
    SHORT_HEAD_BYTES = 4 << 10, /* enough for nearly all; of thousands of shards it counts */
};

/* The first bytes of a file, as `probe` takes them. The caller frees them. */
static int backend_read_head(const struct source *source, size_t most, uint8_t **ret_head,
                             size_t *ret_len)
{
    size_t len = (size_t)min_u64(source_size(source), most);
    uint8_t *head = malloc(most);
    if (!head)
        return -ENOMEM;
    int r = source_read(source, head, len, 0);
    if (r < 0) {
        free(head);
        return r;
    }
    *ret_head = head;
    *ret_len = len;
    return 0;
}

/*
 * ---- files of other formats ----
 *
 * Files that are not archives for us, but that people take for one: an image of another version
 * or of another file system, a container. Naming the format and a way on helps more than
 * "unknown". Recognizes magic numbers only: nothing acts on the answer.
 */

#define TAR_BYTES 512u /* of a header */
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

/* Say which formats are known. */
static void unknown_advise(struct fault *fault)
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

/* Is this a tar's header? Zeros are none. */
static bool unknown_is_tar_header(const uint8_t bytes[TAR_BYTES])
{
    return bytes[0] && backend_tar.probe(NULL, bytes, TAR_BYTES) == 1;
}

/*
 * Are these the first bytes of a tar whose first header is damaged? It is known by the magic of
 * that header, or by a later one in `head`.
 */
static bool unknown_is_tar(const uint8_t *head, size_t head_len)
{
    bool is_tar = unknown_has_magic(head, head_len, TAR_MAGIC_AT, "ustar", 5);
    for (size_t at = TAR_BYTES; !is_tar && head_len >= at + TAR_BYTES; at += TAR_BYTES)
        is_tar = unknown_is_tar_header(head + at);
    return is_tar;
}

static bool unknown_describe_tar(const uint8_t *head, size_t head_len, struct fault *fault)
{
    if (!unknown_is_tar(head, head_len))
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

const char *backend_container(const uint8_t *head, size_t head_len)
{
    const struct unknown *found = unknown_find(head, head_len, true);
    return found ? found->container : NULL;
}

/* Describe a file with these first bytes. False: they do not reveal its format. */
static bool unknown_describe(const uint8_t *head, size_t head_len, struct fault *fault)
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
        unknown_advise(fault);
    return true;
}

/* ---- the back ends ---- */

/* Ask the back ends for an archive behind the front: 1, and whose it is, 0, or -errno. */
static int front_find(const struct front *front, const struct backend **ret_backend,
                      uint64_t *ret_offset)
{
    int r = 0;
    for (size_t i = 0; r == 0 && backend_registry[i]; i++) {
        *ret_backend = backend_registry[i];
        if (backend_registry[i]->find_behind)
            r = backend_registry[i]->find_behind(front, ret_offset);
    }
    return r;
}

/* Name an end that is an archive's, though the beginning is not. False: there is none. */
static bool backend_describe_end(const struct source *source, struct fault *fault)
{
    const struct front front = {.source = source};
    const struct backend *backend;
    uint64_t offset;
    if (front_find(&front, &backend, &offset) != 1)
        return false;
    fault_set(fault, -ENOMSG, NULL, FAULT_NO_OFFSET,
              "does not begin like an archive, but ends like %s", backend->file);
    if (offset == 0)
        fault_advise(fault, "if its beginning is damaged, copy it again");
    else
        fault_advise(fault,
                     "if its beginning is damaged, copy it again; --offset=%" PRIu64
                     " reads the end alone",
                     source_start(source) + offset);
    return true;
}

static int backend_unknown(const struct source *source, const uint8_t *head, size_t len,
                           struct fault *fault)
{
    if (len == 0) {
        fault_set(fault, -ENOMSG, NULL, FAULT_NO_OFFSET, "is empty");
        fault_advise(fault, "its writer did not finish: make it again");
    } else if (unknown_describe(head, len, fault)) {
        if (source_member(source, 1) && backend_container(head, len))
            fault_advise(fault,
                         "join its parts first (cat PARTS >FILE), and make an archive of "
                         "that: onepot pack -o NEW.tar FILE");
    } else if (!backend_describe_end(source, fault)) {
        fault_set(fault, -ENOMSG, NULL, FAULT_NO_OFFSET, "is not an archive of a known format");
        unknown_advise(fault);
    }
    return -ENOMSG;
}

/* Do the format's files have names with this ending, such as ".tar"? */
static bool backend_is_named(const struct backend *backend, const char *ending, size_t len)
{
    for (const char *const *e = backend->endings; e && *e; e++)
        if (strlen(*e) == len && memcmp(*e, ending, len) == 0)
            return true;
    return false;
}

/*
 * Ask the back ends about the head, first those whose files are called so: whose is it, maybe
 * compressed as a whole? 0: none but maybe `asked` knows it. The uncompressed format is checked
 * first, as a member's name may look like a compression's magic.
 */
static int backend_ask(const struct source *source, const uint8_t *head, size_t len,
                       const struct backend *asked, const struct backend **ret_backend,
                       const char **ret_compression)
{
    const char *dot = strrchr(source_name(source), '.');
    int r = 0;
    for (int called_so = 1; r == 0 && called_so >= 0; called_so--)
        for (size_t i = 0; r == 0 && backend_registry[i]; i++) {
            const struct backend *backend = backend_registry[i];
            if (backend == asked ||
                (dot && backend_is_named(backend, dot, strlen(dot))) != called_so)
                continue;
            *ret_compression = NULL;
            *ret_backend = backend;
            r = backend->probe(source, head, len);
            if (r == 0 && backend->stream)
                r = backend->stream->is_packed(source, head, len, ret_compression);
        }
    return r;
}

static int backend_find_in(const struct source *source, size_t head_bytes, struct fault *fault,
                           const struct backend **ret_backend, const char **ret_compression)
{
    auto_free uint8_t *head = NULL;
    size_t len = 0;
    bool is_short = source_size(source) > head_bytes && head_bytes < HEAD_BYTES;
    int r = backend_read_head(source, head_bytes, &head, &len);
    if (r == -ENOMEM)
        return r;
    if (r < 0)
        return fault_set_read(fault, r, NULL, 0);
    if (is_short && bytes_are_zero(head, len)) /* zeros tell no format: an ISO image has them */
        return 0;
    r = backend_ask(source, head, len, NULL, ret_backend, ret_compression);
    if (r < 0)
        return fault_set_errno(fault, r, NULL, "could not be examined");
    return r > 0 || is_short ? r : backend_unknown(source, head, len, fault);
}

int backend_find(const struct source *source, struct fault *fault,
                 const struct backend **ret_backend, const char **ret_compression)
{
    const struct backend *backend;
    const char *compression;
    int r = backend_find_in(source, SHORT_HEAD_BYTES, fault, &backend, &compression);
    if (r == 0)
        r = backend_find_in(source, HEAD_BYTES, fault, &backend, &compression);
    if (r < 0)
        return r;
    *ret_backend = backend;
    if (ret_compression)
        *ret_compression = compression;
    return 0;
}

const struct backend *backend_begins(const struct source *source, const struct backend *asked,
                                     const char **ret_compression)
{
    auto_free uint8_t *head = NULL;
    const struct backend *backend;
    const char *ignored;
    size_t len;
    bool begins = backend_read_head(source, SHORT_HEAD_BYTES, &head, &len) == 0 &&
                  !bytes_are_zero(head, len) &&
                  backend_ask(source, head, len, asked, &backend,
                              ret_compression ? ret_compression : &ignored) > 0;
    return begins ? backend : NULL;
}

const struct backend *backend_of_head(const struct source *source, const uint8_t *head,
                                      size_t head_len)
{
    for (size_t i = 0; backend_registry[i]; i++)
        if (backend_registry[i]->probe(source, head, head_len) == 1)
            return backend_registry[i];
    return NULL;
}

int backend_compression(const struct backend *backend, const struct source *source,
                        const char **ret_compression)
{
    auto_free uint8_t *head = NULL;
    size_t len = 0;
    int r = backend_read_head(source, HEAD_BYTES, &head, &len);
    if (r == 0)
        r = backend->probe(source, head, len);
    return r || !backend->stream
               ? r
               : backend->stream->is_packed(source, head, len, ret_compression);
}

const struct backend *backend_of_number(uint64_t number)
{
    for (size_t i = 0; backend_registry[i]; i++)
        if (backend_registry[i]->number == number)
            return backend_registry[i];
    return NULL;
}

void backend_list(bool as_files, char buf[BACKEND_LIST_BYTES])
{
    size_t count = 0, len = 0;
    while (backend_registry[count])
        count++;
    buf[0] = '\0';
    for (size_t i = count; i-- > 0 && len < BACKEND_LIST_BYTES;) { /* the best known first */
        const struct backend *backend = backend_registry[i];
        const char *between = i + 1 == count ? "" : i > 0 ? ", " : " or ";
        len += (size_t)snprintf(buf + len, BACKEND_LIST_BYTES - len, "%s%s", between,
                                as_files ? backend->file : backend->name);
    }
}

/* The length without the ending, if the name has it behind something else. */
static size_t backend_cut(const char *name, size_t len, const char *ending)
{
    size_t n = strlen(ending);
    return len > n && memcmp(name + len - n, ending, n) == 0 ? len - n : len;
}

size_t backend_stem(const char *name, size_t len)
{
    static const char *const compressions[] = {".gz",  ".bz2", ".xz",  ".zst",
                                               ".lz4", ".lz",  ".lzma"};
    size_t stem = len;
    for (size_t i = 0; stem == len && i < sizeof(compressions) / sizeof(compressions[0]); i++) {
        size_t tar = backend_cut(name, len, compressions[i]);
        size_t cut = tar < len ? backend_cut(name, tar, ".tar") : tar;
        stem = cut < tar ? cut : len;
    }
    const char *dot = memrchr(name, '.', len);
    for (size_t i = 0; stem == len && dot && dot != name && backend_registry[i]; i++)
        if (backend_is_named(backend_registry[i], dot, len - (size_t)(dot - name)))
            stem = (size_t)(dot - name);
    if (stem < len)
        stem = backend_cut(name, stem, ".onepot");
    return path_are_dots(name, stem) ? len : stem; /* "..tar" */
}

/*
 * ---- archives that lie inside another file ----
 *
 * The file's own statement of its length decides where the archive begins, so that no magic is
 * looked for in the middle of other data: a SIF has a table, a program its sections. A script
 * ends where its text ends: makers of installers append the archive to the last line. So each
 * line may begin the archive, up to the first line with a NUL byte, which is no text; padding
 * of NULs may lie between. Formats with a sure magic or a sum are taken there.
 *
 * Formats that have a directory at their end (onepot, zip) may be found by that, but only
 * behind a script, a program, or --offset. Behind anything else such an end may be another
 * file's: a tar's last member, say, where the tar's beginning is damaged.
 */

/*
 * The layout, from the specification of SIF 1. All numbers are little-endian, signed, and
 * without padding between them.
 *
 *     header, 128 bytes                         descriptor, 585 bytes
 *       0  32  a line for the shell               0    4  kind of object (0x4004: partition)
 *      32  10  "SIF_MAGIC\0"                      4    1  1: in use
 *      42   3  version, "01\0"                    5    4  its number
 *      45   3  architecture                       9    4  its group
 *      48  16  UUID                              13    4  the object that it belongs to
 *      64   8  time of creation                  17    8  offset of the object in the file
 *      72   8  time of change                    25    8  its length
 *      80   8  descriptors that are free         33    8  the same, with padding
 *      88   8  descriptors in all                41   16  times of creation and change
 *      96   8  offset of the first               57   16  user, group
 *     104   8  bytes of all                      73  128  name
 *     112   8  offset of the objects            201  384  by kind; of a partition:
 *     120   8  bytes of them                              201  4  filesystem (1: SquashFS)
 *                                                         205  4  use (1: system, 2: primary
 *                                                                 system, 3: data, 4: overlay)
 *
 * Programs write 48 descriptors. A table may have more, but not so many that reading it takes
 * long.
 */

#define HEADER_BYTES 128u
#define MAGIC_AT 32u
#define VERSION_AT 42u
#define TOTAL_AT 88u
#define TABLE_AT 96u
#define DESCRIPTOR_BYTES 585u
#define DESCRIPTORS_MAX 4096u

enum {
    KIND_PARTITION = 0x4004,
    FILESYSTEM_SQUASHFS = 1,
    FILESYSTEM_ENCRYPTED = 5,
};

static bool sif_probe(const uint8_t *head, size_t head_len)
{
    static const char magic[10] = "SIF_MAGIC";
    return head_len >= HEADER_BYTES && memcmp(head + MAGIC_AT, magic, sizeof(magic)) == 0;
}

static unsigned sif_rank(uint32_t use)
{
    static const unsigned ranks[] = {[1] = 2, [2] = 3, [3] = 1};
    return use < sizeof(ranks) / sizeof(ranks[0]) ? ranks[use] : 0;
}

/* The table's place: 0, or -EUCLEAN. */
static int sif_read_header(const struct source *source, struct fault *fault,
                           uint64_t *ret_table, uint64_t *ret_count)
{
    uint8_t header[HEADER_BYTES];
    uint64_t size = source_size(source);
    int r = source_read_fault(source, header, sizeof(header), 0, fault);
    if (r < 0)
        return r;
    if (memcmp(header + VERSION_AT, "01", 2) != 0)
        return fault_set(fault, -ENOTSUP, NULL, VERSION_AT,
                         "is a SIF of another version than 1");
    *ret_count = bytes_le64(header + TOTAL_AT);
    *ret_table = bytes_le64(header + TABLE_AT);
    if (*ret_count > DESCRIPTORS_MAX)
        return fault_set(fault, -EUCLEAN, NULL, TOTAL_AT,
                         "claims a table of %" PRIu64 " descriptors: damaged SIF", *ret_count);
    if (*ret_table > size || *ret_count * DESCRIPTOR_BYTES > size - *ret_table)
        return fault_set(fault, -EUCLEAN, NULL, TABLE_AT,
                         "has its descriptors past its end: damaged or truncated SIF");
    return 0;
}

/*
 * The best partition with SquashFS: *ret_at is its descriptor, or stays as it was.
 * *ret_filesystem is of any with another filesystem.
 */
static int sif_search(const struct source *source, uint64_t table, uint64_t count,
                      struct fault *fault, uint64_t *ret_at, uint64_t *ret_offset,
                      uint64_t *ret_length, uint32_t *ret_filesystem)
{
    unsigned best = 0;
    for (uint64_t i = 0, at = table; i < count; i++, at += DESCRIPTOR_BYTES) {
        uint8_t d[DESCRIPTOR_BYTES];
        int r = source_read_fault(source, d, sizeof(d), at, fault);
        if (r < 0)
            return r;
        if (bytes_le32(d) != KIND_PARTITION || d[4] != 1)
            continue;
        uint32_t filesystem = bytes_le32(d + 201);
        unsigned rank = sif_rank(bytes_le32(d + 205));
        if (filesystem != FILESYSTEM_SQUASHFS) {
            *ret_filesystem = filesystem;
        } else if (rank > best) {
            best = rank;
            *ret_at = at;
            *ret_offset = bytes_le64(d + 17);
            *ret_length = bytes_le64(d + 25);
        }
    }
    return 0;
}

static int sif_without_image(uint32_t filesystem, struct fault *fault)
{
    if (filesystem == FILESYSTEM_ENCRYPTED)
        return fault_set_advised(fault, -ENOTSUP, NULL, FAULT_NO_OFFSET,
                                 "build it without encryption",
                                 "is a container whose image is encrypted");
    return fault_set_advised(fault, -ENOTSUP, NULL, FAULT_NO_OFFSET,
                             "'apptainer sif list' tells what it has",
                             "is a container (SIF) without a SquashFS image");
}

/*
 * Where the SquashFS image lies: the primary system's; else a system's; else one of data. The
 * first of several. -EUCLEAN, -ENOTSUP (it has another filesystem, or none), or a read error,
 * each with a fault.
 */
static int sif_find_image(const struct source *source, struct fault *fault,
                          uint64_t *ret_offset, uint64_t *ret_length)
{
    uint64_t table = 0, count = 0, size = source_size(source);
    uint64_t at = UINT64_MAX, offset = 0, length = 0;
    uint32_t other = 0;
    int r = sif_read_header(source, fault, &table, &count);
    if (r == 0)
        r = sif_search(source, table, count, fault, &at, &offset, &length, &other);
    if (r < 0)
        return r;
    if (at == UINT64_MAX)
        return sif_without_image(other, fault);
    if (offset > size || length > size - offset)
        return fault_set_advised(fault, -EUCLEAN, NULL, at, "copy it again",
                                 "has its image past its end (%" PRIu64 " bytes at %" PRIu64
                                 "): damaged or truncated SIF",
                                 length, offset);
    *ret_offset = offset;
    *ret_length = length;
    return 0;
}

#define SCRIPT_BYTES (1u << 20) /* of a script before its archive */
#define BEGIN_BYTES 4096u       /* enough to know a format or a container by */

bool front_next(const struct front *front, size_t *cursor, struct front *ret_rest)
{
    if (*cursor >= front->len)
        return false;
    const uint8_t *at = front->bytes + *cursor, *end = front->bytes + front->len;
    if (front->is_script) {
        const uint8_t *line = memchr(at, '\n', (size_t)(end - at));
        if (!line || memchr(at, '\0', (size_t)(line - at)))
            return false;
        at = line + 1;
        *cursor = (size_t)(at - front->bytes);
        while (at < end && *at == '\0')
            at++;
    } else {
        *cursor = front->len;
    }
    size_t skipped = (size_t)(at - front->bytes);
    *ret_rest = (struct front){.source = front->source,
                               .bytes = at,
                               .len = front->len - skipped,
                               .offset = front->offset + skipped};
    return true;
}

/* The end of what an ELF file's own headers describe. 0: they are damaged. */
static uint64_t elf_end(const struct source *source, const uint8_t *head, size_t head_len)
{
    enum { ELF_32 = 1, ELF_64 = 2, LITTLE = 1 };
    uint8_t last[64];
    uint64_t table, end, section_end;
    if (head_len < 64 || (head[4] != ELF_32 && head[4] != ELF_64) || head[5] != LITTLE)
        return 0;
    bool is_64 = head[4] == ELF_64;
    uint32_t each = bytes_le16(head + (is_64 ? 58 : 46));
    uint32_t count = bytes_le16(head + (is_64 ? 60 : 48));
    table = is_64 ? bytes_le64(head + 40) : bytes_le32(head + 32);
    if (each != (is_64 ? 64 : 40) || count == 0 ||
        __builtin_add_overflow(table, (uint64_t)each * count, &end) ||
        source_read(source, last, each, end - each) < 0)
        return 0;
    uint64_t at = is_64 ? bytes_le64(last + 24) : bytes_le32(last + 16);
    uint64_t bytes = is_64 ? bytes_le64(last + 32) : bytes_le32(last + 20);
    /* The last section may lie behind the table. */
    return __builtin_add_overflow(at, bytes, &section_end) ? 0 : max_u64(end, section_end);
}

static bool container_begins(const uint8_t *head, size_t head_len, const char *magic)
{
    size_t len = strlen(magic);
    return head_len >= len && memcmp(head, magic, len) == 0;
}

/*
 * Read what may hold the archive's beginning. 0: the file is neither a script nor a program.
 * Nothing is read of a program that does not tell its end.
 */
static int container_read_front(const struct source *source, const uint8_t *head,
                                size_t head_len, struct front *front, uint8_t **ret_bytes)
{
    uint64_t size = source_size(source), most = BEGIN_BYTES;
    bool is_elf = container_begins(head, head_len, "\177ELF");
    front->is_script = container_begins(head, head_len, "#!");
    if ((!front->is_script && !is_elf && !container_begins(head, head_len, "MZ")) ||
        unknown_is_tar(head, head_len) || backend_of_head(source, head, head_len))
        return 0;
    if (is_elf)
        front->offset = elf_end(source, head, head_len);
    if (front->is_script)
        most += SCRIPT_BYTES;
    else if (front->offset == 0 || front->offset >= size)
        return 1;
    front->len = min_u64(size - front->offset, most);
    *ret_bytes = malloc(front->len);
    if (!*ret_bytes)
        return -ENOMEM;
    front->bytes = *ret_bytes;
    int r = source_read(source, *ret_bytes, front->len, front->offset);
    return r < 0 ? r : 1;
}

/*
 * 1: a tar's header lies right before `offset`, so that the archive there is a member. The
 * tar's own beginning is damaged then, and only its first member's name looks like a program's
 * magic.
 */
static int container_is_member(const struct source *source, uint64_t offset)
{
    uint8_t header[TAR_BYTES];
    if (offset < sizeof(header))
        return 0;
    int r = source_read(source, header, sizeof(header), offset - sizeof(header));
    return r < 0 ? r : unknown_is_tar_header(header);
}

static int container_find_behind(const struct source *source, const uint8_t *head,
                                 size_t head_len, struct container *ret_container)
{
    struct front front = {.source = source};
    const struct backend *backend;
    auto_free uint8_t *bytes = NULL;
    uint64_t offset;
    int r = container_read_front(source, head, head_len, &front, &bytes);
    if (r == 1)
        r = front_find(&front, &backend, &offset);
    int is_member = r == 1 ? container_is_member(source, offset) : 0;
    if (r == 1 && offset > 0 && is_member == 0)
        *ret_container = (struct container){front.is_script ? "a script" : "a program", offset,
                                            source_size(source) - offset};
    return r < 0 ? r : is_member < 0 ? is_member : 0;
}

int container_find(const struct source *source, struct fault *fault,
                   struct container *ret_container)
{
    uint8_t head[BEGIN_BYTES];
    size_t len = min_u64(source_size(source), sizeof(head));
    struct container found = {0};
    int r = source_read(source, head, len, 0);
    if (r == 0 && sif_probe(head, len)) {
        r = sif_find_image(source, fault, &found.offset, &found.length);
        found.name = "a SIF";
    } else if (r == 0) {
        r = container_find_behind(source, head, len, &found);
    }
    if (r < 0)
        return r == -ENOMEM || (fault && fault->err) ? r : fault_set_read(fault, r, NULL, 0);
    *ret_container = found;
    return 0;
}
