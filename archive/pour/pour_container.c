/*
 * Members of archives other than tars, by libarchive.
 *
 * Names are wanted as UTF-8, which most of these formats have in other forms; the parent has
 * opened such a locale, since the sandbox opens no file.
 *
 * A cpio may hold the data of a file of several names with its last name. The earlier ones wait
 * for it.
 */
#include <endian.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <archive.h>
#include <archive_entry.h>

#include "map.h"
#include "numbers.h"
#include "pour_private.h"
#include "protobuf.h"

#define READ_BYTES ((size_t)256 << 10)
#define TAIL_BYTES ((size_t)4096)

/* A file of several names in a cpio. */
struct links {
    char *first;                 /* its name in the archive; NULL: its data has not come */
    struct archive_entry *entry; /* of the first that waits */
    VECTOR(char *) waiting;
};

struct container {
    struct pour *p;
    struct pour_stream *stream; /* NULL: a file that can be sought */
    const struct pour_format *format;
    bool is_open; /* libarchive knows the format */
    struct archive *archive;
    uint8_t *bytes;           /* READ_BYTES of the file */
    int error;                /* of reading it */
    uint8_t tail[TAIL_BYTES]; /* the last bytes that libarchive got */
    size_t tail_len;
    VECTOR(struct links) files;
    struct map numbers; /* of `files`, by device and inode */
};

/* ---- formats ---- */

static int container_enable_rar(struct archive *a)
{
    int r = archive_read_support_format_rar5(a);
    return r == ARCHIVE_OK ? archive_read_support_format_rar(a) : r;
}

static const struct pour_format formats[] = {
    {"7z", archive_read_support_format_7zip, true},
    {"rar", container_enable_rar, false},
    {"iso9660", archive_read_support_format_iso9660, false},
    {"cpio", archive_read_support_format_cpio, false},
    {"ar", archive_read_support_format_ar, false},
    {"cab", archive_read_support_format_cab, false},
    {"warc", archive_read_support_format_warc, false},
    {"xar", archive_read_support_format_xar, false},
    {"lha", archive_read_support_format_lha, false},
};

const struct pour_format *pour_find_format(const uint8_t *head, size_t len)
{
    const char *name = unknown_format_container(head, len);
    for (size_t i = 0; name && i < sizeof(formats) / sizeof(formats[0]); i++)
        if (strcmp(formats[i].name, name) == 0)
            return &formats[i];
    return NULL;
}

/* A RAR 5 header is numbers, which have the form of Protocol Buffers'. */
bool pour_is_rar_volume(const uint8_t *head, size_t len)
{
    uint64_t ignored, type, flags, archive_flags;
    if (len >= 12 && memcmp(head, "Rar!\x1a\x07\x00", 7) == 0)
        return head[9] == 0x73 && (head[10] & 1);
    if (len < 12 || memcmp(head, "Rar!\x1a\x07\x01\x00", 8) != 0)
        return false;
    struct cursor c = {head + 12, len - 12}; /* behind the signature and a sum */
    return protobuf_varint(&c, &ignored) &&  /* length */
           protobuf_varint(&c, &type) && protobuf_varint(&c, &flags) && type == 1 &&
           (!(flags & 1) || protobuf_varint(&c, &ignored)) && /* length behind the header */
           protobuf_varint(&c, &archive_flags) && (archive_flags & 1);
}

/* ---- a file ---- */

static ssize_t file_read(struct archive *a, void *ctx, const void **ret_bytes)
{
    struct container *c = ctx;
    ssize_t n = pour_read_input(c->p->input->fd, c->p->progress, c->bytes, READ_BYTES);
    if (n < 0) {
        c->error = (int)n;
        archive_set_error(a, (int)-n, "read error");
        return ARCHIVE_FATAL;
    }
    *ret_bytes = c->bytes;
    return n;
}

static la_int64_t file_seek(struct archive *a, void *ctx, la_int64_t offset, int whence)
{
    const struct container *c = ctx;
    off_t at = lseek(c->p->input->fd, offset, whence);
    (void)a;
    return at < 0 ? ARCHIVE_FATAL : at;
}

static la_int64_t file_skip(struct archive *a, void *ctx, la_int64_t bytes)
{
    const struct container *c = ctx;
    off_t from = lseek(c->p->input->fd, 0, SEEK_CUR), end, to;
    (void)a;
    if (from < 0 || (end = lseek(c->p->input->fd, 0, SEEK_END)) < 0)
        return 0;
    to = bytes < end - from ? from + bytes : end;
    return lseek(c->p->input->fd, to, SEEK_SET) < 0 ? ARCHIVE_FATAL : to - from;
}

static ssize_t container_read(struct archive *a, void *ctx, const void **ret_bytes)
{
    struct container *c = ctx;
    ssize_t n =
        c->stream ? pour_stream_next(a, c->stream, ret_bytes) : file_read(a, c, ret_bytes);
    if (n > 0) {
        size_t len = min_u64((uint64_t)n, TAIL_BYTES);
        size_t kept = min_u64(c->tail_len, TAIL_BYTES - len);
        memmove(c->tail, c->tail + c->tail_len - kept, kept);
        memcpy(c->tail + kept, (const uint8_t *)*ret_bytes + n - len, len);
        c->tail_len = kept + len;
    }
    return n;
}

static int container_open(struct container *c)
{
    struct archive *a = c->archive;
    if (c->format->enable(a) != ARCHIVE_OK)
        return fault_set(c->p->fault, -ENOTSUP, NULL, FAULT_NO_OFFSET,
                         "is a %s archive, which this build does not read", c->format->name);
    if (!c->stream) {
        c->bytes = malloc(READ_BYTES);
        if (!c->bytes)
            return -ENOMEM;
        archive_read_set_seek_callback(a, file_seek);
        archive_read_set_skip_callback(a, file_skip);
    }
    archive_read_set_read_callback(a, container_read);
    archive_read_set_callback_data(a, c);
    c->is_open = archive_read_open1(a) == ARCHIVE_OK;
    return c->is_open ? 0 : -EUCLEAN;
}

/* ---- errors ---- */

static int container_encrypted(struct container *c, const char *path)
{
    return fault_set_advised(c->p->fault, -EACCES, path, FAULT_NO_OFFSET,
                             "extract it with its password, and pack the directory",
                             "is encrypted");
}

/* Of the input: as far as libarchive has read. */
static uint64_t container_offset(const struct container *c)
{
    off_t at = c->stream ? (off_t)c->stream->given : lseek(c->p->input->fd, 0, SEEK_CUR);
    return at < 0 ? FAULT_NO_OFFSET : (uint64_t)at;
}

static int container_damaged(struct container *c, const char *last, const char *why)
{
    return fault_set(c->p->fault, -EUCLEAN, last, container_offset(c), "%s%s: %s",
                     last && last[0] ? "is followed by a damaged part of the "
                                     : "is a damaged ",
                     c->format->name, why);
}

static int container_failed(struct container *c, const char *last)
{
    if (c->stream && c->stream->error < 0)
        return c->stream->error;
    if (c->error < 0)
        return fault_set_read(c->p->fault, c->error, last, container_offset(c));
    if (archive_errno(c->archive) == ENOMEM)
        return -ENOMEM;
    if (c->is_open &&
        archive_read_has_encrypted_entries(c->archive) == 1) /* else it may crash */
        return container_encrypted(c, NULL);
    return container_damaged(c, last, tar_complaint(c->archive));
}

/* For a few bytes, also in a build without libdeflate, which makes the other CRC-32. */
static uint32_t crc32_of(const uint8_t *bytes, size_t len)
{
    uint32_t crc = UINT32_MAX;
    for (size_t i = 0; i < 8 * len; i++) {
        crc ^= i % 8 ? 0 : bytes[i / 8];
        crc = crc >> 1 ^ (crc & 1 ? 0xEDB88320 : 0);
    }
    return ~crc;
}

/* A block of RAR 5: the sum of what follows, its length behind these five bytes, its type. */
static bool tail_has_rar_end(const uint8_t *tail, size_t len)
{
    for (size_t i = 0; i + 6 <= len; i++) {
        size_t size = tail[i + 4];
        uint32_t sum;
        memcpy(&sum, tail + i, sizeof(sum));
        if (tail[i + 5] == 5 && size < 128 && size <= len - i - 5 &&
            crc32_of(tail + i + 4, 1 + size) == le32toh(sum))
            return true;
    }
    return false;
}

/*
 * libarchive takes a RAR 5 that ends between two blocks, or in the head of one, for whole, and
 * an ar that ends in the head of a member.
 */
static int container_check_end(struct container *c, const char *last)
{
    int format = archive_format(c->archive);
    bool is_cut = false;
    if (format == ARCHIVE_FORMAT_RAR_V5)
        is_cut = !tail_has_rar_end(c->tail, c->tail_len);
    else if ((format & ARCHIVE_FORMAT_BASE_MASK) == ARCHIVE_FORMAT_AR)
        is_cut = container_offset(c) > (uint64_t)archive_filter_bytes(c->archive, 0);
    return is_cut ? container_damaged(c, last, "its end is missing") : 0;
}

/* ---- members ---- */

static int container_describe(struct container *c, struct archive_entry *entry,
                              const char *path, struct fault *fault,
                              struct builder_member *ret_member)
{
    uint64_t offset = (uint64_t)archive_read_header_position(c->archive);
    struct builder_member m = {.header_offset = offset};
    tar_describe(entry, &m, &c->p->odd);
    int r = tar_describe_type(entry, &m);
    if (r < 0)
        return fault_set(fault, -EINVAL, path, offset,
                         r == -EINVAL ? "is a symbolic link without a target"
                                      : "is of a type that no directory has");
    if (S_ISREG(m.mode)) {
        if (!archive_entry_size_is_set(entry) || archive_entry_size(entry) < 0)
            return fault_set(fault, -EINVAL, path, offset,
                             "has no size that is known before its end");
        m.size_bytes = (uint64_t)archive_entry_size(entry);
    }
    *ret_member = m;
    return 0;
}

static int container_add(struct container *c, struct archive_entry *entry, const char *path,
                         struct fault *fault)
{
    struct builder_member m;
    int r = container_describe(c, entry, path, fault, &m);
    return r < 0 ? r : pour_add(c->p, path, &m, c->archive, entry, fault);
}

static int container_link(struct container *c, const char *path, const char *target,
                          struct archive_entry *entry, struct fault *fault)
{
    struct builder_member m = {.header_offset =
                                   (uint64_t)archive_read_header_position(c->archive)};
    tar_describe(entry, &m, &c->p->odd);
    return pour_link(c->p, path, target, &m, fault);
}

/* Leaves the member out, if `r` allows that. */
static int container_settle(struct container *c, int r, const struct fault *own)
{
    if (builder_may_leave_out(r) && own->err)
        return pour_leave_out(c->p, own);
    if (r < 0 && !c->p->fault->err)
        *c->p->fault = *own;
    return r;
}

/* ---- files of several names ---- */

/* The names that waited become links to the one that is there. */
static int links_release(struct container *c, struct links *l)
{
    int r = 0;
    for (size_t i = 0; i < l->waiting.count; i++) {
        struct fault own = {0};
        if (r == 0)
            r = container_settle(
                c, container_link(c, l->waiting.at[i], l->first, l->entry, &own), &own);
        free(l->waiting.at[i]);
    }
    l->waiting.count = 0;
    return r;
}

static int links_find(struct container *c, struct archive_entry *entry,
                      struct links **ret_links)
{
    struct map_key key = {(uint64_t)archive_entry_dev(entry),
                          (uint64_t)archive_entry_ino64(entry)};
    uint64_t number = c->files.count;
    if (map_get(&c->numbers, key, &number) < 0) {
        if (vector_push(&c->files, (struct links){0}) < 0)
            return -ENOMEM;
        int r = map_put(&c->numbers, key, number);
        if (r < 0)
            return r;
    }
    *ret_links = &c->files.at[number];
    return 0;
}

static int links_wait(struct links *l, struct archive_entry *entry, const char *path)
{
    char *copy = strdup(path);
    if (!l->entry)
        l->entry = archive_entry_clone(entry);
    if (copy && l->entry && vector_push(&l->waiting, copy) == 0)
        return 0;
    free(copy);
    return -ENOMEM;
}

static int container_add_named(struct container *c, struct archive_entry *entry,
                               const char *path, struct fault *fault)
{
    struct links *l;
    int r = links_find(c, entry, &l);
    if (r < 0)
        return r;
    if (l->first)
        return container_link(c, path, l->first, entry, fault);
    if (archive_entry_size(entry) == 0)
        return links_wait(l, entry, path);
    r = container_add(c, entry, path, fault);
    if (r == 0 && !(l->first = strdup(path)))
        r = -ENOMEM;
    return r == 0 ? links_release(c, l) : r;
}

/* Those without data are empty files. */
static int links_end(struct container *c)
{
    int r = 0;
    for (size_t i = 0; i < c->files.count; i++) {
        struct links *l = &c->files.at[i];
        struct fault own = {0};
        if (r == 0 && l->waiting.count) {
            r = container_settle(c, container_add(c, l->entry, l->waiting.at[0], &own), &own);
            l->first = strdup(l->waiting.at[0]);
            if (r == 0)
                r = l->first ? links_release(c, l) : -ENOMEM;
        }
    }
    return r;
}

static void links_free(struct container *c)
{
    for (size_t i = 0; i < c->files.count; i++) {
        struct links *l = &c->files.at[i];
        for (size_t k = 0; k < l->waiting.count; k++)
            free(l->waiting.at[k]);
        vector_free(&l->waiting);
        archive_entry_free(l->entry);
        free(l->first);
    }
    vector_free(&c->files);
    map_free(&c->numbers);
}

/* ---- the walk ---- */

/* The tables of an ar are no members. */
static bool container_is_table(const struct container *c, const char *path)
{
    return strcmp(c->format->name, "ar") == 0 &&
           (path[0] == '/' || strncmp(path, "__.SYMDEF", 9) == 0);
}

static int container_take(struct container *c, struct archive_entry *entry)
{
    struct fault own = {0};
    const char *path = archive_entry_pathname(entry);
    const char *target = archive_entry_hardlink(entry);
    int r;
    if (archive_entry_is_encrypted(entry))
        return container_encrypted(c, path);
    if (!path || !path[0])
        r = fault_set(&own, -EINVAL, NULL, (uint64_t)archive_read_header_position(c->archive),
                      "a member has no name that can be shown");
    else if (container_is_table(c, path))
        r = 0;
    else if (strcmp(c->format->name, "cpio") == 0 && archive_entry_nlink(entry) > 1 &&
             (target || archive_entry_filetype(entry) == AE_IFREG))
        r = container_add_named(c, entry, path, &own);
    else if (target)
        r = container_link(c, path, target, entry, &own);
    else
        r = container_add(c, entry, path, &own);
    return container_settle(c, r, &own);
}

static int container_walk(struct container *c)
{
    struct archive_entry *entry;
    char last[sizeof(c->p->fault->member)] = "";
    for (;;) {
        int status = archive_read_next_header(c->archive, &entry);
        if (status == ARCHIVE_EOF)
            break;
        if (status != ARCHIVE_OK && status != ARCHIVE_WARN)
            return container_failed(c, last);
        const char *path = archive_entry_pathname(entry);
        snprintf(last, sizeof(last), "%s", path ? path : "");
        int r = container_take(c, entry);
        if (r < 0)
            return r;
        c->p->progress->members++;
    }
    int r = container_check_end(c, last);
    return r < 0 ? r : links_end(c);
}

int pour_container(struct pour *p, struct pour_stream *stream, const struct pour_format *format)
{
    bool is_file = p->input->is_file && !stream->compression;
    struct container c = {.p = p, .stream = is_file ? NULL : stream, .format = format};
    if (format->seeks && !is_file)
        return fault_set_advised(
            p->fault, -ENOMSG, NULL, FAULT_NO_OFFSET, "save it in a file and pack that",
            "is a %s archive, whose directory is at its end", format->name);
    if (is_file && lseek(p->input->fd, 0, SEEK_SET) < 0)
        return -errno;
    c.archive = archive_read_new();
    if (!c.archive)
        return -ENOMEM;
    locale_t before = uselocale(p->locale ? p->locale : LC_GLOBAL_LOCALE);
    int r = container_open(&c);
    r = r == -EUCLEAN ? container_failed(&c, NULL) : r < 0 ? r : container_walk(&c);
    if (r == 0 && c.stream)
        r = pour_stream_drain(c.stream);
    uselocale(before);
    archive_read_free(c.archive);
    links_free(&c);
    free(c.bytes);
    return r;
}
