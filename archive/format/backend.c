/*
 * Finds the back end that knows a file.
 */
#include "backend.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cleanup.h"
#include "numbers.h"
#include "path.h"
#include "unknown_format.h"

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
 * Is it the back end's, maybe compressed as a whole? The uncompressed format is checked first,
 * as a member's name may look like a compression's magic.
 */
static int backend_fits(const struct backend *backend, const struct source *source,
                        const uint8_t *head, size_t len, const char **ret_compression)
{
    int r = backend->probe(source, head, len);
    return r || !backend->stream
               ? r
               : backend->stream->is_packed(source, head, len, ret_compression);
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
    } else if (unknown_format_describe(head, len, fault)) {
        if (source_member(source, 1) && unknown_format_container(head, len))
            fault_advise(fault,
                         "join its parts first (cat PARTS >FILE), and make an archive of "
                         "that: onepot pack -o NEW.tar FILE");
    } else if (!backend_describe_end(source, fault)) {
        fault_set(fault, -ENOMSG, NULL, FAULT_NO_OFFSET, "is not an archive of a known format");
        unknown_format_advise(fault);
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
 * Ask the back ends about the head, first those whose files are called so. 0: none knows it.
 */
static int backend_ask(const struct source *source, const uint8_t *head, size_t len,
                       const struct backend **ret_backend, const char **ret_compression)
{
    const char *dot = strrchr(source_name(source), '.');
    int r = 0;
    for (int called_so = 1; r == 0 && called_so >= 0; called_so--)
        for (size_t i = 0; r == 0 && backend_registry[i]; i++) {
            const struct backend *backend = backend_registry[i];
            if ((dot && backend_is_named(backend, dot, strlen(dot))) != called_so)
                continue;
            *ret_compression = NULL;
            *ret_backend = backend;
            r = backend_fits(backend, source, head, len, ret_compression);
        }
    return r;
}

/* A short head of zeros alone tells no format: an ISO image begins so, too. */
static bool backend_is_blank(const uint8_t *head, size_t len)
{
    return len == 0 || (head[0] == 0 && memcmp(head, head + 1, len - 1) == 0);
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
    if (is_short && backend_is_blank(head, len))
        return 0;
    r = backend_ask(source, head, len, ret_backend, ret_compression);
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

const struct backend *backend_begins(const struct source *source, const char **ret_compression)
{
    auto_free uint8_t *head = NULL;
    const struct backend *backend;
    const char *ignored;
    size_t len;
    bool begins = backend_read_head(source, SHORT_HEAD_BYTES, &head, &len) == 0 &&
                  !backend_is_blank(head, len) &&
                  backend_ask(source, head, len, &backend,
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
    return r < 0 ? r : backend_fits(backend, source, head, len, ret_compression);
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
