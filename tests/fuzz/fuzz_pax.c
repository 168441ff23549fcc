/*
 * What the packer writes, libarchive reads back: any member that pax_encode takes comes
 * out as it went in. The bytes say what the member is.
 */
#include <archive.h>
#include <archive_entry.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "fuzz.h"
#include "pax.h"

struct bytes {
    const uint8_t *at;
    size_t left;
};

static uint64_t take(struct bytes *b, size_t len)
{
    uint64_t value = 0;
    if (len > b->left)
        len = b->left;
    memcpy(&value, b->at, len);
    b->at += len;
    b->left -= len;
    return value;
}

/* Text without NUL bytes, never empty, from malloc. */
static char *take_text(struct bytes *b, size_t max, size_t *ret_len)
{
    size_t len = 1 + take(b, 2) % max;
    char *text = malloc(len + 1);
    if (!text)
        abort();
    for (size_t i = 0; i < len; i++) {
        text[i] = (char)take(b, 1);
        if (!text[i])
            text[i] = 'n';
    }
    text[len] = '\0';
    *ret_len = len;
    return text;
}

/* A path as a packer has it: no slashes at its ends or next to each other, no dots. */
static char *take_path(struct bytes *b, size_t *ret_len)
{
    char *path = take_text(b, 1200, ret_len);
    for (size_t i = 0; i < *ret_len; i++)
        if ((path[i] == '/' &&
             (i == 0 || i + 1 == *ret_len || path[i - 1] == '/' || path[i - 1] == '.')) ||
            (i == 0 && path[i] == '.'))
            path[i] = 'p';
    return path;
}

static void compare(const struct node *m, struct archive_entry *e)
{
    const char *path = archive_entry_pathname(e);
    size_t len = path ? strlen(path) : 0;
    require(path && len >= m->path_len && memcmp(path, m->path, m->path_len) == 0);
    require(len == m->path_len || (S_ISDIR(m->mode) && path[m->path_len] == '/'));
    require(archive_entry_uid(e) == m->uid && archive_entry_gid(e) == m->gid);
    require((archive_entry_perm(e) & 07777u) == (m->mode & 07777u));
    if (m->is_hardlink) {
        require(strcmp(archive_entry_hardlink(e), m->link) == 0);
        return;
    }
    require(archive_entry_filetype(e) == (m->mode & S_IFMT));
    if (S_ISREG(m->mode))
        require((uint64_t)archive_entry_size(e) == m->size_bytes);
    if (S_ISLNK(m->mode))
        require(strcmp(archive_entry_symlink(e), m->link) == 0);
    require((size_t)archive_entry_xattr_reset(e) == m->xattr_count);
    if (m->mtime_sec >= 0) { /* of those before 1970 libarchive loses some */
        require(archive_entry_mtime(e) == m->mtime_sec);
        require(archive_entry_mtime_nsec(e) == (long)m->mtime_nsec);
    }
}

static void read_back(const struct node *m, const struct pax_buffer *buffer)
{
    struct archive *a = archive_read_new();
    struct archive_entry *entry;
    archive_read_support_format_tar(a);
    require(archive_read_open_memory(a, buffer->at, buffer->count) == ARCHIVE_OK);
    require(archive_read_next_header(a, &entry) >= ARCHIVE_WARN);
    compare(m, entry);
    archive_read_free(a);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const uint32_t types[] = {S_IFREG, S_IFREG, S_IFDIR, S_IFLNK,
                                     S_IFCHR, S_IFBLK, S_IFIFO, S_IFSOCK};
    struct bytes b = {data, size};
    struct pax_buffer buffer = {0};
    uint32_t flags = (uint32_t)take(&b, 1);
    struct node m = {
        .mode = types[flags % 8] | ((uint32_t)take(&b, 2) & 07777u),
        .is_hardlink = flags % 8 == 1,
        .uid = (uint32_t)take(&b, 4),
        .gid = (uint32_t)take(&b, 4),
        .mtime_sec = (int64_t)take(&b, 8) >> take(&b, 1) % 64,
        .mtime_nsec = (uint32_t)take(&b, 4) % 1000000000u,
        .rdev_major = (uint32_t)take(&b, 1),
        .rdev_minor = (uint32_t)take(&b, 1),
    };
    if (flags % 8 == 0) /* libarchive refuses those near 2^63 */
        m.size_bytes = take(&b, 8) >> (2 + take(&b, 1) % 62);
    char *link = take_path(&b, &m.link_len), *name = take_text(&b, 200, &m.xattr_count);
    struct xattr xattr = {name, m.xattr_count, data, size < 1000 ? size : 1000};
    m.xattr_count = flags & 64 && !m.is_hardlink && !memchr(name, '=', xattr.name_len) ? 1 : 0;
    char *path = take_path(&b, &m.path_len);
    m.path = path;
    m.link = link;
    m.xattrs = &xattr;
    int r = pax_encode(&m, &buffer);
    require(r == 0 || buffer.count == 0);
    require(buffer.count % PAX_BLOCK_BYTES == 0);
    if (r == 0)
        read_back(&m, &buffer);
    vector_free(&buffer);
    free(link);
    free(name);
    free(path);
    return 0;
}

uint8_t *fuzz_seed(unsigned number, size_t *ret_size)
{
    if (number >= 32)
        return NULL;
    *ret_size = 1500;
    uint8_t *seed = calloc(1, *ret_size);
    if (!seed)
        abort();
    for (size_t i = 0; i < *ret_size; i++)
        seed[i] = (uint8_t)(i * (number + 3) + (i >> 5));
    seed[0] = (uint8_t)(number % 8 | (number / 8) << 6);
    return seed;
}
