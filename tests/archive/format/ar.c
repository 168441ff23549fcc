/*
 * How to add a format: ar archives (libraries, Debian packages), whole, in one file. It is for
 * tests alone. A test program has it in its registry (tests/meson.build); onepot itself has
 * not.
 *
 * An ar archive is "!<arch>\n" and a sequence of members: a header of 60 bytes of text, then
 * the data, padded to an even length. A name that does not fit in the header lies before the
 * data (BSD: "#1/" and its length) or in a member that has all of them (GNU: "/" and the
 * offset in the member "//").
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "backend.h"
#include "cleanup.h"

#define MAGIC "!<arch>\n"

enum {
    MAGIC_BYTES = 8,
    HEADER_BYTES = 60,
    NAME_BYTES = 16, /* in the header */
    LONG_NAMES_MAX = 16 << 20,
};

struct ar {
    struct source *source;
    struct builder *builder;
    struct fault *fault;
    uint64_t at; /* of the current member's header */
    uint64_t data_at, size_bytes;
    char header[HEADER_BYTES], name[INDEX_PATH_MAX];
    size_t name_len;
    char *long_names; /* the content of "//" */
    size_t long_names_len;
};

static int ar_damaged(const struct ar *ar, const char *what)
{
    return fault_set(ar->fault, -EUCLEAN, NULL, ar->at, "%s", what);
}

/* A number, left-justified and padded with spaces. -EUCLEAN: it is something else. */
static int ar_number(const struct ar *ar, size_t field_at, size_t len, unsigned base,
                     uint64_t *ret_value)
{
    const char *field = ar->header + field_at;
    uint64_t value = 0;
    size_t i = 0;
    for (; i < len && field[i] >= '0' && field[i] < '0' + (char)base; i++)
        value = value * base + (uint64_t)(field[i] - '0');
    for (; i < len; i++)
        if (field[i] != ' ')
            return ar_damaged(ar, "a header has something else than a number");
    *ret_value = value;
    return 0;
}

static bool ar_has_name(const struct ar *ar, const char *name)
{
    size_t len = strlen(name);
    return memcmp(ar->header, name, len) == 0 &&
           strspn(ar->header + len, " ") >= NAME_BYTES - len;
}

/* The member's data lie in the file. */
static int ar_read_header(struct ar *ar)
{
    uint64_t size = source_size(ar->source);
    if (size - ar->at < HEADER_BYTES)
        return ar_damaged(ar, "the archive is cut off in a header");
    int r = source_read(ar->source, ar->header, HEADER_BYTES, ar->at);
    if (r < 0)
        return r;
    if (memcmp(ar->header + 58, "`\n", 2) != 0)
        return ar_damaged(ar, "there is no header where a member should begin");
    ar->data_at = ar->at + HEADER_BYTES;
    r = ar_number(ar, 48, 10, 10, &ar->size_bytes);
    if (r == 0 && ar->size_bytes > size - ar->data_at)
        return ar_damaged(ar, "a member does not fit in the archive");
    return r;
}

static int ar_read_long_names(struct ar *ar)
{
    if (ar->long_names || ar->size_bytes > LONG_NAMES_MAX)
        return ar_damaged(ar, "there are too many long names");
    ar->long_names_len = ar->size_bytes;
    ar->long_names = malloc(ar->size_bytes + 1);
    return ar->long_names ? source_read(ar->source, ar->long_names, ar->size_bytes, ar->data_at)
                          : -ENOMEM;
}

static int ar_take_name(struct ar *ar, const char *bytes, size_t len)
{
    if (len == 0 || len > sizeof(ar->name))
        return ar_damaged(ar, "a name has an impossible length");
    memcpy(ar->name, bytes, len);
    ar->name_len = len;
    return 0;
}

/* A name in "//" ends with a slash and a line feed. */
static int ar_find_long_name(struct ar *ar)
{
    uint64_t offset = 0;
    int r = ar_number(ar, 1, NAME_BYTES - 1, 10, &offset);
    if (r < 0 || offset >= ar->long_names_len)
        return ar_damaged(ar, "a name lies outside the long names");
    const char *name = ar->long_names + offset;
    const char *end = memchr(name, '\n', ar->long_names_len - offset);
    if (!end || end == name)
        return ar_damaged(ar, "a long name has no end");
    return ar_take_name(ar, name, (size_t)(end - name) - (end[-1] == '/'));
}

/* The name before the data is not part of them. */
static int ar_read_name_before(struct ar *ar)
{
    uint64_t len = 0;
    int r = ar_number(ar, 3, NAME_BYTES - 3, 10, &len);
    if (r < 0 || len == 0 || len > ar->size_bytes || len > sizeof(ar->name))
        return ar_damaged(ar, "a name has an impossible length");
    r = source_read(ar->source, ar->name, len, ar->data_at);
    ar->name_len = strnlen(ar->name, len); /* padded with NULs */
    ar->data_at += len;
    ar->size_bytes -= len;
    return r;
}

static int ar_read_name(struct ar *ar)
{
    if (ar->header[0] == '/')
        return ar_find_long_name(ar);
    if (memcmp(ar->header, "#1/", 3) == 0)
        return ar_read_name_before(ar);
    size_t len = NAME_BYTES;
    while (len > 0 && ar->header[len - 1] == ' ')
        len--;
    if (len > 0 && ar->header[len - 1] == '/')
        len--;
    return ar_take_name(ar, ar->header, len);
}

static int ar_add(struct ar *ar)
{
    uint64_t mtime = 0, uid = 0, gid = 0, mode = 0;
    uint32_t inode;
    int r = ar_number(ar, 16, 12, 10, &mtime);
    if (r == 0)
        r = ar_number(ar, 28, 6, 10, &uid);
    if (r == 0)
        r = ar_number(ar, 34, 6, 10, &gid);
    if (r == 0)
        r = ar_number(ar, 40, 8, 8, &mode);
    if (r == 0)
        r = ar_read_name(ar);
    if (r < 0)
        return r;
    struct node member = {
        .mode = S_IFREG | ((uint32_t)mode & 07777),
        .uid = (uint32_t)uid,
        .gid = (uint32_t)gid,
        .mtime_sec = (int64_t)mtime,
        .size_bytes = ar->size_bytes,
        .data_offset = ar->data_at,
        .header_offset = ar->at,
    };
    return builder_add(ar->builder, ar->name, ar->name_len, &member, ar->fault, &inode);
}

static int ar_index(struct source *source, struct builder *builder,
                    struct builder_header *header, struct progress *progress,
                    struct fault *fault)
{
    auto_free struct ar *ar = calloc(1, sizeof(*ar));
    int r = ar ? 0 : -ENOMEM;
    (void)header; /* no codec, no sums */
    if (r == 0)
        *ar = (struct ar){
            .source = source, .builder = builder, .fault = fault, .at = MAGIC_BYTES};
    for (uint64_t next; r == 0 && ar->at < source_size(source); ar->at = next) {
        r = ar_read_header(ar);
        next = ar->data_at + ar->size_bytes + (ar->size_bytes & 1);
        progress->bytes_done = next;
        if (r == 0 && ar_has_name(ar, "//"))
            r = ar_read_long_names(ar);
        else if (r == 0 && !ar_has_name(ar, "/") && !ar_has_name(ar, "/SYM64/")) /* symbols */
            r = ar_add(ar);
    }
    if (ar)
        free(ar->long_names);
    return r;
}

static int ar_probe(const struct source *source, const uint8_t *head, size_t head_len)
{
    (void)source;
    return head_len >= MAGIC_BYTES && memcmp(head, MAGIC, MAGIC_BYTES) == 0;
}

static const char *const endings[] = {".a", ".deb", NULL};

const struct backend backend_ar = {
    .name = "ar",
    .file = "an ar archive",
    .endings = endings,
    .number = 1001,
    .probe = ar_probe,
    .index = ar_index,
};
