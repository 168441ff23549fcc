/*
 * Encodes tar members.
 *
 * A ustar header holds small values: a path of at most 100 bytes (or one that splits at a slash
 * into 155 and 100), seconds, 8 GiB, ids below 2^21. Anything larger goes into records of a pax
 * extended header ('x') before it. The field in the ustar header is then only a fallback for
 * readers that skip records.
 *
 * Pax has no silent way to write a path that is not ASCII. Its records are UTF-8 by definition,
 * so bsdtar and tarfile stumble over such a path in a C locale, and over raw bytes in any
 * locale. The record that announces raw bytes (hdrcharset) makes GNU tar complain. So a path
 * like this that is too long for the header is written as GNU's long name ('L', 'K'), which all
 * of them take as plain bytes.
 *
 * Nothing here depends on the machine or the moment. Owner names are left empty, so that the
 * numbers count everywhere, and extended headers have a constant name.
 */
#include "pax.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "bytes.h"
#include "cleanup.h"

#define NAME_BYTES 100u
#define PREFIX_BYTES 155u
#define ID_LIMIT (1u << 21)              /* seven octal digits */
#define NUMBER_LIMIT (UINT64_C(1) << 33) /* eleven octal digits */

/* The fields of a ustar header: offset and width, from POSIX. */
struct field {
    uint16_t offset;
    uint16_t width;
};
static const struct field f_name = {0, 100}, f_mode = {100, 8}, f_uid = {108, 8},
                          f_gid = {116, 8}, f_size = {124, 12}, f_mtime = {136, 12},
                          f_sum = {148, 8}, f_type = {156, 1}, f_link = {157, 100},
                          f_magic = {257, 8}, f_major = {329, 8}, f_minor = {337, 8},
                          f_prefix = {345, 155};

/* ---- attributes ---- */

int pax_xattrs_add(pax_xattrs *list, const char *name, size_t name_len, const void *value,
                   size_t value_len)
{
    char *bytes = malloc(name_len + value_len + 1);
    if (!bytes)
        return -ENOMEM;
    memcpy(bytes, name, name_len);
    memcpy(bytes + name_len, value, value_len);
    int r = vector_push(list, ((struct xattr){bytes, name_len, bytes + name_len, value_len}));
    if (r < 0)
        free(bytes);
    return r;
}

static int pax_compare_xattrs(const void *a, const void *b)
{
    const struct xattr *x = a, *y = b;
    return bytes_compare(x->name, x->name_len, y->name, y->name_len);
}

void pax_xattrs_sort(pax_xattrs *list)
{
    if (list->count)
        qsort(list->at, list->count, sizeof(*list->at), pax_compare_xattrs);
}

void pax_xattrs_free(pax_xattrs *list)
{
    for (size_t i = 0; i < list->count; i++)
        free((char *)list->at[i].name);
    vector_free(list);
}

/* ---- buffers ---- */

/* Appends room for `len` bytes to the buffer. NULL: no memory. */
static uint8_t *pax_grow(struct pax_buffer *buffer, size_t len)
{
    if (vector_reserve(buffer, len) < 0)
        return NULL;
    uint8_t *place = buffer->at + buffer->count;
    buffer->count += len;
    return place;
}

static int pax_pad_block(struct pax_buffer *buffer)
{
    static const uint8_t zeros[PAX_BLOCK_BYTES];
    return vector_append(buffer, zeros, pax_padding(buffer->count));
}

/*
 * Fills a field with octal digits and a NUL; with the largest number if the value does not fit.
 */
static void pax_put_octal(uint8_t *header, struct field field, uint64_t value)
{
    unsigned digits = field.width - 1u;
    if (value >> (3 * digits))
        value = (UINT64_C(1) << (3 * digits)) - 1;
    for (unsigned i = digits; i-- > 0; value >>= 3)
        header[field.offset + i] = (uint8_t)('0' + (value & 7));
}

static void pax_put_bytes(uint8_t *header, struct field field, const void *bytes, size_t len)
{
    memcpy(header + field.offset, bytes, len < field.width ? len : field.width);
}

/* Comes last: the sum of the header's bytes, with its own field taken as spaces. */
static void pax_put_checksum(uint8_t *header)
{
    memset(header + f_sum.offset, ' ', f_sum.width);
    unsigned sum = 0;
    for (unsigned i = 0; i < PAX_BLOCK_BYTES; i++)
        sum += header[i];
    snprintf((char *)header + f_sum.offset, f_sum.width, "%06o", sum);
}

static void pax_put_common(uint8_t *header, char type, uint32_t mode, uint64_t size)
{
    pax_put_octal(header, f_mode, mode & 07777);
    pax_put_octal(header, f_size, size);
    header[f_type.offset] = (uint8_t)type;
    pax_put_bytes(header, f_magic, "ustar\00000", f_magic.width);
}

/* Appends a header that carries `data` for the header after it: 'x' (pax), 'L' or 'K' (GNU). */
static int pax_append_extension(struct pax_buffer *buffer, char type, const void *data,
                                size_t len)
{
    uint8_t header[PAX_BLOCK_BYTES] = {0};
    const char *name = type == 'x' ? "././@PaxHeader" : "././@LongLink";
    pax_put_bytes(header, f_name, name, strlen(name));
    pax_put_common(header, type, 0644, len);
    pax_put_octal(header, f_uid, 0);
    pax_put_octal(header, f_gid, 0);
    pax_put_octal(header, f_mtime, 0);
    pax_put_checksum(header);
    int r = vector_append(buffer, header, sizeof(header));
    if (r == 0)
        r = vector_append(buffer, data, len);
    return r < 0 ? r : pax_pad_block(buffer);
}

/* Appends a record "LENGTH KEYWORD=VALUE\n". The length counts its own digits. */
static int pax_append_record(struct pax_buffer *records, const char *key, size_t key_len,
                             const void *value, size_t value_len)
{
    size_t rest;
    if (__builtin_add_overflow(key_len + 3, value_len, &rest)) /* space, '=', newline */
        return -EOVERFLOW;
    size_t len = rest, before;
    char digits[24];
    do {
        before = len;
        len = rest + (size_t)snprintf(digits, sizeof(digits), "%zu", before);
    } while (len != before);

    uint8_t *place = pax_grow(records, len);
    if (!place)
        return -ENOMEM;
    place = mempcpy(place, digits, strlen(digits));
    *place++ = ' ';
    place = mempcpy(place, key, key_len);
    *place++ = '=';
    place = mempcpy(place, value, value_len);
    *place = '\n';
    return 0;
}

static int pax_append_text(struct pax_buffer *records, const char *key, const char *value)
{
    return pax_append_record(records, key, strlen(key), value, strlen(value));
}

static int pax_append_number(struct pax_buffer *records, const char *key, uint64_t value)
{
    char text[24];
    snprintf(text, sizeof(text), "%" PRIu64, value);
    return pax_append_text(records, key, text);
}

static bool pax_mtime_fits(const struct node *m)
{
    return m->mtime_nsec == 0 && m->mtime_sec >= 0 && (uint64_t)m->mtime_sec < NUMBER_LIMIT;
}

/* Decimal seconds. Before 1970 the nanoseconds count towards zero: -1.25 is -2 and 75%. */
static int pax_append_mtime(struct pax_buffer *records, const struct node *m)
{
    char text[48];
    bool negative = m->mtime_sec < 0;
    uint64_t sec = negative ? 0 - (uint64_t)m->mtime_sec : (uint64_t)m->mtime_sec;
    uint32_t nsec = m->mtime_nsec;
    if (negative && nsec) {
        sec--;
        nsec = 1000000000u - nsec;
    }
    int len =
        snprintf(text, sizeof(text), "%s%" PRIu64 ".%09u", negative ? "-" : "", sec, nsec);
    while (text[len - 1] == '0')
        len--;
    if (text[len - 1] == '.')
        len--;
    text[len] = '\0';
    return pax_append_text(records, "mtime", text);
}

/*
 * SCHILY.xattr.NAME. A keyword ends at the first '=', so GNU tar writes '=' in a name as %3D,
 * and '%' as %25. Others take those literally, but such names are very rare.
 */
static int pax_append_xattr(struct pax_buffer *records, const struct xattr *x)
{
    static const char space[] = "SCHILY.xattr.";
    char *key = malloc(strlen(space) + 3 * x->name_len + 1), *end = key;
    if (!key)
        return -ENOMEM;
    end = mempcpy(end, space, strlen(space));
    for (size_t i = 0; i < x->name_len; i++) {
        if (x->name[i] == '=' || x->name[i] == '%')
            end = mempcpy(end, x->name[i] == '=' ? "%3D" : "%25", 3);
        else
            *end++ = x->name[i];
    }
    int r = pax_append_record(records, key, (size_t)(end - key), x->value, x->value_len);
    free(key);
    return r;
}

static bool pax_is_ascii(const char *bytes, size_t len)
{
    for (size_t i = 0; i < len; i++)
        if ((unsigned char)bytes[i] >= 0x80)
            return false;
    return true;
}

static bool pax_is_regular(const struct node *m)
{
    return S_ISREG(m->mode) && !m->is_hardlink;
}

/* The member's name as in the header: directories end with a slash. */
struct pax_name {
    char *bytes;
    size_t len;
    size_t prefix_len; /* bytes before the slash that is not written; 0: no prefix */
    bool fits;
    bool ascii;
    bool sparse; /* goes into GNU.sparse.name; the header has another name */
};

/* Finds the slash that splits a long name into prefix and name. */
static void pax_split_name(struct pax_name *name)
{
    name->fits = name->len <= NAME_BYTES;
    if (name->fits || name->len > PREFIX_BYTES + 1 + NAME_BYTES)
        return;
    size_t first = name->len - NAME_BYTES - 1; /* the name after it has at most 100 bytes */
    for (size_t i = first ? first : 1; i + 1 < name->len && i <= PREFIX_BYTES; i++) {
        if (name->bytes[i] == '/') {
            name->prefix_len = i;
            name->fits = true;
            return;
        }
    }
}

static int pax_make_name(const struct node *m, struct pax_name *ret_name)
{
    struct pax_name name = {.bytes = malloc(m->path_len + 3)};
    if (!name.bytes)
        return -ENOMEM;
    if (m->path_len == 0)
        name.bytes[name.len++] = '.';
    if (m->path_len)
        memcpy(name.bytes, m->path, m->path_len);
    name.len += m->path_len;
    if (S_ISDIR(m->mode))
        name.bytes[name.len++] = '/';
    pax_split_name(&name);
    name.ascii = pax_is_ascii(name.bytes, name.len);
    name.sparse = m->has_pieces && pax_is_regular(m) && name.ascii;
    *ret_name = name;
    return 0;
}

static int pax_append_map_numbers(struct pax_buffer *map, uint64_t first, uint64_t second)
{
    char text[48];
    int len = snprintf(text, sizeof(text), "%" PRIu64 "\n%" PRIu64 "\n", first, second);
    return vector_append(map, text, (size_t)len);
}

/*
 * GNU's sparse format 1.0 puts the map before the member's data: the number of ranges, then
 * offset and length of each, one number a line. A hole at the end is marked by an empty range
 * there.
 */
static int pax_make_sparse_map(const struct node *m, struct pax_buffer *map)
{
    uint64_t end = 0;
    char text[24];
    if (m->piece_count)
        end = m->pieces[m->piece_count - 1].offset + m->pieces[m->piece_count - 1].length;
    bool tail = end < m->size_bytes || m->piece_count == 0;
    int len = snprintf(text, sizeof(text), "%zu\n", m->piece_count + tail);
    int r = vector_append(map, text, (size_t)len);
    for (size_t i = 0; r == 0 && i < m->piece_count; i++)
        r = pax_append_map_numbers(map, m->pieces[i].offset, m->pieces[i].length);
    if (r == 0 && tail)
        r = pax_append_map_numbers(map, m->size_bytes, 0);
    return r < 0 ? r : pax_pad_block(map);
}

uint64_t pax_stored_bytes(const struct node *m)
{
    if (!pax_is_regular(m))
        return 0;
    if (!m->has_pieces)
        return m->size_bytes;
    uint64_t sum = 0;
    for (size_t i = 0; i < m->piece_count; i++)
        sum += m->pieces[i].length;
    return sum;
}

static int pax_append_sparse_records(struct pax_buffer *records, const struct node *m,
                                     const struct pax_name *name)
{
    int r = pax_append_text(records, "GNU.sparse.major", "1");
    if (r == 0)
        r = pax_append_text(records, "GNU.sparse.minor", "0");
    if (r == 0 && name->sparse)
        r = pax_append_record(records, "GNU.sparse.name", strlen("GNU.sparse.name"),
                              name->bytes, name->len);
    return r < 0 ? r : pax_append_number(records, "GNU.sparse.realsize", m->size_bytes);
}

/*
 * Everything that the header can't hold, in a fixed order. `size`: of the data, map included.
 */
static int pax_make_records(const struct node *m, const struct pax_name *name, uint64_t size,
                            struct pax_buffer *records)
{
    int r = 0;
    if (m->has_pieces && pax_is_regular(m))
        r = pax_append_sparse_records(records, m, name);
    else if (!name->fits && name->ascii)
        r = pax_append_record(records, "path", 4, name->bytes, name->len);
    if (r == 0 && m->link_len > NAME_BYTES && pax_is_ascii(m->link, m->link_len))
        r = pax_append_record(records, "linkpath", 8, m->link, m->link_len);
    if (r == 0 && size >= NUMBER_LIMIT)
        r = pax_append_number(records, "size", size);
    if (r == 0 && m->uid >= ID_LIMIT)
        r = pax_append_number(records, "uid", m->uid);
    if (r == 0 && m->gid >= ID_LIMIT)
        r = pax_append_number(records, "gid", m->gid);
    if (r == 0 && !pax_mtime_fits(m))
        r = pax_append_mtime(records, m);
    for (size_t i = 0; r == 0 && i < m->xattr_count; i++)
        r = pax_append_xattr(records, &m->xattrs[i]);
    return r;
}

/* GNU's long name: the bytes and a NUL. */
static int pax_append_long_name(struct pax_buffer *buffer, char type, const char *bytes,
                                size_t len)
{
    auto_free char *terminated = calloc(1, len + 1);
    if (!terminated)
        return -ENOMEM;
    memcpy(terminated, bytes, len);
    return pax_append_extension(buffer, type, terminated, len + 1);
}

static int pax_append_extensions(struct pax_buffer *buffer, const struct node *m,
                                 const struct pax_name *name, const struct pax_buffer *records)
{
    int r = 0;
    if (records->count)
        r = pax_append_extension(buffer, 'x', records->at, records->count);
    if (r == 0 && m->link_len > NAME_BYTES && !pax_is_ascii(m->link, m->link_len))
        r = pax_append_long_name(buffer, 'K', m->link, m->link_len);
    if (r == 0 && !name->fits && !name->ascii)
        r = pax_append_long_name(buffer, 'L', name->bytes, name->len);
    return r;
}

static char pax_member_type(const struct node *m)
{
    static const char types[] = {[S_IFREG >> 12] = '0', [S_IFLNK >> 12] = '2',
                                 [S_IFCHR >> 12] = '3', [S_IFBLK >> 12] = '4',
                                 [S_IFDIR >> 12] = '5', [S_IFIFO >> 12] = '6',
                                 [S_IFMT >> 12] = '\0'};
    return m->is_hardlink ? '1' : types[(m->mode & S_IFMT) >> 12];
}

/*
 * A reader that does not support sparse files must not take the condensed data for the file. So
 * the header has the name that GNU tar uses, without its process id.
 */
static void pax_put_name(uint8_t *header, const struct node *m, const struct pax_name *name)
{
    if (name->sparse) {
        const char *slash = memrchr(m->path, '/', m->path_len);
        const char *base = slash ? slash + 1 : m->path;
        size_t base_len = m->path_len - (size_t)(base - m->path);
        static const char folder[] = "GNUSparseFile.0/";
        struct field rest = {(uint16_t)strlen(folder), (uint16_t)(NAME_BYTES - strlen(folder))};
        pax_put_bytes(header, f_name, folder, strlen(folder));
        pax_put_bytes(header, rest, base, base_len);
    } else if (name->prefix_len) {
        size_t skip = name->prefix_len + 1;
        pax_put_bytes(header, f_prefix, name->bytes, name->prefix_len);
        pax_put_bytes(header, f_name, name->bytes + skip, name->len - skip);
    } else {
        pax_put_bytes(header, f_name, name->bytes, name->len);
    }
}

static int pax_append_header(struct pax_buffer *buffer, const struct node *m,
                             const struct pax_name *name, uint64_t size)
{
    uint8_t header[PAX_BLOCK_BYTES] = {0};
    bool device = S_ISCHR(m->mode) || S_ISBLK(m->mode);
    pax_put_name(header, m, name);
    pax_put_common(header, pax_member_type(m), m->mode, size);
    pax_put_octal(header, f_uid, m->uid);
    pax_put_octal(header, f_gid, m->gid);
    pax_put_octal(header, f_mtime, m->mtime_sec < 0 ? 0 : (uint64_t)m->mtime_sec);
    pax_put_octal(header, f_major, device && !m->is_hardlink ? m->rdev_major : 0);
    pax_put_octal(header, f_minor, device && !m->is_hardlink ? m->rdev_minor : 0);
    if (m->link_len)
        pax_put_bytes(header, f_link, m->link, m->link_len);
    pax_put_checksum(header);
    return vector_append(buffer, header, sizeof(header));
}

int pax_encode(const struct node *m, struct pax_buffer *buffer)
{
    if (!pax_member_type(m))
        return -EINVAL;
    size_t before = buffer->count;
    struct pax_buffer map = {0}, records = {0};
    struct pax_name name = {0};
    uint64_t size = pax_stored_bytes(m);
    int r = pax_make_name(m, &name);
    if (r == 0 && m->has_pieces && pax_is_regular(m))
        r = pax_make_sparse_map(m, &map);
    if (r == 0 && __builtin_add_overflow(size, map.count, &size))
        r = -EOVERFLOW;
    if (r == 0)
        r = pax_make_records(m, &name, size, &records);
    if (r == 0)
        r = pax_append_extensions(buffer, m, &name, &records);
    if (r == 0)
        r = pax_append_header(buffer, m, &name, size);
    if (r == 0)
        r = vector_append(buffer, map.at, map.count);
    if (r < 0)
        buffer->count = before;
    free(name.bytes);
    vector_free(&records);
    vector_free(&map);
    return r;
}

/* ---- alignment ---- */

/* Appends a record `comment` of spaces, `len` bytes in all. */
static int pax_append_comment(struct pax_buffer *records, size_t len)
{
    uint8_t *place = pax_grow(records, len);
    if (!place)
        return -ENOMEM;
    memset(place, ' ', len);
    char head[40];
    memcpy(place, head, (size_t)snprintf(head, sizeof(head), "%zu comment=", len));
    place[len - 1] = '\n';
    return 0;
}

/* Length of the records in the member's first extended header; 0: it has none. */
static size_t pax_first_records(const struct pax_buffer *buffer)
{
    size_t len = 0;
    if (buffer->count < PAX_BLOCK_BYTES || buffer->at[f_type.offset] != 'x')
        return 0;
    for (unsigned i = 0; i + 1u < f_size.width; i++)
        len = len << 3 | (buffer->at[f_size.offset + i] & 7u);
    return len <= buffer->count - PAX_BLOCK_BYTES ? len : 0;
}

int pax_align(struct pax_buffer *buffer, uint64_t offset, uint32_t align_bytes)
{
    size_t gap = (size_t)(-(offset + buffer->count) & (align_bytes - 1));
    size_t old = pax_first_records(buffer);
    size_t skip = old ? PAX_BLOCK_BYTES + old + pax_padding(old) : 0;
    if (gap == 0)
        return 0;
    if (!old && gap == PAX_BLOCK_BYTES)
        gap += align_bytes; /* header and records take at least two blocks */
    struct pax_buffer records = {0}, aligned = {0};
    int r = old ? vector_append(&records, buffer->at + PAX_BLOCK_BYTES, old) : 0;
    if (r == 0)
        r = pax_append_comment(&records, old ? pax_padding(old) + gap : gap - PAX_BLOCK_BYTES);
    if (r == 0)
        r = pax_append_extension(&aligned, 'x', records.at, records.count);
    if (r == 0)
        r = vector_append(&aligned, buffer->at + skip, buffer->count - skip);
    vector_free(&records);
    if (r < 0) {
        vector_free(&aligned);
        return r;
    }
    vector_free(buffer);
    *buffer = aligned;
    return 0;
}
