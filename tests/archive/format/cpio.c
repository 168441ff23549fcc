/*
 * cpio archives ("newc"), for tests alone, like ar.c. A cpio archive is a sequence of members:
 * a header of 110 bytes in ASCII, the name, the data, each padded to a multiple of 4; the last
 * member is called TRAILER!!!. Of the names of one inode only the last has the data, so the
 * others wait until it comes.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "backend.h"
#include "checksum.h"
#include "cleanup.h"
#include "vector.h"

enum {
    HEADER_BYTES = 110,
    FIELDS = 13,
    FIELD_DIGITS = 8,
};

enum field {
    INO,
    MODE,
    UID,
    GID,
    NLINK,
    MTIME,
    SIZE,
    MAJOR,
    MINOR,
    RMAJOR,
    RMINOR,
    NAME,
    CHECK
};

struct cpio_member {
    uint64_t at; /* of its header */
    uint32_t fields[FIELDS];
    uint64_t data_at, next_at;
    char name[INDEX_PATH_MAX + 1];
};

struct cpio_walk {
    struct source *source;
    struct builder *builder;
    struct fault *fault;
    VECTOR(struct cpio_member) links; /* names whose data are to come; NLINK 0: came */
};

static bool cpio_decode(const uint8_t *header, uint32_t fields[FIELDS])
{
    if (memcmp(header, "07070", 5) != 0 || (header[5] != '1' && header[5] != '2'))
        return false;
    for (size_t i = 0; i < (size_t)FIELDS * FIELD_DIGITS; i++) {
        static const char digits[] = "0123456789abcdef";
        const char *digit = memchr(digits, header[6 + i] | ' ', 16);
        if (!digit)
            return false;
        fields[i / FIELD_DIGITS] = fields[i / FIELD_DIGITS] << 4 | (uint32_t)(digit - digits);
    }
    return true;
}

static int cpio_damaged(const struct cpio_walk *w, uint64_t at, const char *what)
{
    return fault_set(w->fault, -EUCLEAN, NULL, at, "%s", what);
}

/* Read the header at m->at and the name. The data lie within the file. */
static int cpio_read_member(struct cpio_walk *w, struct cpio_member *m)
{
    uint8_t header[HEADER_BYTES];
    uint64_t size = source_size(w->source);
    if (size - m->at < HEADER_BYTES)
        return cpio_damaged(w, m->at, "the archive is cut off: it has no end");
    int r = source_read(w->source, header, sizeof(header), m->at);
    if (r < 0)
        return r;
    if (!cpio_decode(header, m->fields))
        return cpio_damaged(w, m->at, "there is no header where a member should begin");
    uint32_t len = m->fields[NAME];
    if (len < 2 || len > sizeof(m->name) || len > size - m->at - HEADER_BYTES)
        return cpio_damaged(w, m->at, "a name has an impossible length");
    r = source_read(w->source, m->name, len, m->at + HEADER_BYTES);
    if (r < 0)
        return r;
    m->data_at = (m->at + HEADER_BYTES + len + 3) & ~UINT64_C(3);
    m->next_at = (m->data_at + m->fields[SIZE] + 3) & ~UINT64_C(3);
    if (m->name[len - 1] || strlen(m->name) != len - 1 || m->next_at > size)
        return cpio_damaged(w, m->at, "a member does not fit in the archive");
    return 0;
}

static int cpio_set_sum(struct cpio_walk *w, const struct cpio_member *m, uint32_t inode)
{
    uint32_t size = m->fields[SIZE];
    auto_free uint8_t *bytes = malloc(size ? size : 1);
    int r = bytes ? source_read(w->source, bytes, size, m->data_at) : -ENOMEM;
    return r < 0 ? r : builder_set_sum(w->builder, inode, checksum_of(SUM_CRC32, bytes, size));
}

/* The names of this inode that came before its data. */
static int cpio_add_links(struct cpio_walk *w, const struct cpio_member *m)
{
    uint32_t ignored;
    int r = 0;
    for (size_t i = 0; r == 0 && i < w->links.count; i++) {
        struct cpio_member *link = &w->links.at[i];
        const uint32_t *a = link->fields, *b = m->fields;
        if (!a[NLINK] || a[INO] != b[INO] || a[MAJOR] != b[MAJOR] || a[MINOR] != b[MINOR])
            continue;
        link->fields[NLINK] = 0;
        r = builder_add(w->builder, link->name, strlen(link->name),
                        &(struct node){.header_offset = link->at,
                                       .is_hardlink = true,
                                       .link = m->name,
                                       .link_len = strlen(m->name)},
                        w->fault, &ignored);
    }
    return r;
}

static int cpio_add(struct cpio_walk *w, const struct cpio_member *m)
{
    char target[INDEX_SYMLINK_MAX];
    struct node member = {
        .mode = m->fields[MODE],
        .uid = m->fields[UID],
        .gid = m->fields[GID],
        .rdev_major = m->fields[RMAJOR],
        .rdev_minor = m->fields[RMINOR],
        .mtime_sec = m->fields[MTIME],
        .size_bytes = S_ISREG(m->fields[MODE]) ? m->fields[SIZE] : 0,
        .data_offset = m->data_at,
        .header_offset = m->at,
        .link = target,
        .link_len = m->fields[SIZE],
    };
    uint32_t inode;
    int r = 0;
    if (S_ISLNK(member.mode) && (!member.link_len || member.link_len > sizeof(target)))
        return cpio_damaged(w, m->at, "a symbolic link has an impossible length");
    if (S_ISLNK(member.mode))
        r = source_read(w->source, target, member.link_len, m->data_at);
    if (r == 0)
        r = builder_add(w->builder, m->name, strlen(m->name), &member, w->fault, &inode);
    if (r == 0 && S_ISREG(member.mode))
        r = cpio_set_sum(w, m, inode);
    return r == 0 && S_ISREG(member.mode) ? cpio_add_links(w, m) : r;
}

static int cpio_index(struct source *source, struct builder *builder,
                      struct builder_header *header, struct progress *progress,
                      struct fault *fault)
{
    struct cpio_walk w = {.source = source, .builder = builder, .fault = fault};
    auto_free struct cpio_member *m = calloc(1, sizeof(*m));
    int r = m ? 0 : -ENOMEM;
    header->sum_kind = SUM_CRC32;
    for (; r == 0; m->at = m->next_at) {
        r = cpio_read_member(&w, m);
        if (r == 0 && strcmp(m->name, "TRAILER!!!") == 0)
            break;
        if (r == 0 && S_ISREG(m->fields[MODE]) && m->fields[NLINK] > 1 && !m->fields[SIZE])
            r = vector_push(&w.links, *m);
        else if (r == 0)
            r = cpio_add(&w, m);
        progress->bytes_done = m->next_at;
    }
    for (size_t i = 0; r == 0 && i < w.links.count; i++)
        if (w.links.at[i].fields[NLINK]) /* an empty file */
            r = cpio_add(&w, &w.links.at[i]);
    vector_free(&w.links);
    return r;
}

static int cpio_probe(const struct source *source, const uint8_t *head, size_t head_len)
{
    uint32_t fields[FIELDS];
    (void)source;
    return head_len >= HEADER_BYTES && cpio_decode(head, fields);
}

static const char *const endings[] = {".cpio", NULL};

const struct backend backend_cpio = {
    .name = "cpio",
    .file = "a cpio archive",
    .endings = endings,
    .number = 1000,
    .probe = cpio_probe,
    .index = cpio_index,
};
