/*
 * The tar back end: libarchive reads the headers, the builder gets the members.
 *
 * A member's data is never read. libarchive reports where it starts (the number of bytes
 * consumed right after its header) and which ranges of a sparse file it holds, in order. Their
 * sum has to lead to the next header, and that is checked for each member. So a map of holes
 * that libarchive reads differently from what its writer meant is an error, never wrong data.
 *
 * Several tars may be joined to one file (cat). Each is read by an archive of libarchive of its
 * own, from the header behind the last one's end on. Without --ignore-zeros the members behind
 * the first end are only counted, as left out.
 *
 * A member that can't be shown (a hard link to a missing file, a name of 300 bytes, a member
 * below a file, an extended header that makes no sense) is left out. Programs that extract do
 * the same: they complain, extract the rest, and fail at the end. The index records what was
 * left out and why. Damage to the tar itself (a bad header, data that ends too early) fails the
 * whole archive, because nothing behind it is known. One exception: where GNU tar continues on
 * another volume (-M), the file ends in the data of a member, with a whole record. Only that
 * member is left out.
 *
 * Names are bytes. In any locale but "C", libarchive converts the names in pax headers from
 * UTF-8 to the locale's charset and composes accents (Unicode form C). In the C locale it can
 * convert only ASCII, which changes nothing, and leaves other names as they are, with a
 * warning. So members are read in the C locale, whatever the caller has set, and that warning
 * is no error.
 */
#include <archive.h>
#include <archive_entry.h>
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <linux/limits.h>
#include <linux/posix_acl.h>
#include <linux/posix_acl_xattr.h>
#include <locale.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "bytes.h"
#include "cleanup.h"
#include "numbers.h"
#include "source.h"
#include "tar_private.h"
#include "vector.h"

/*
 * Recognizes a tar, or a compressed file that may hold one, by its first bytes.
 *
 * These functions, up to tar_check_end, run in the calling process, on bytes of unknown origin,
 * and so call no library. Tar's oldest form has no magic, but every form has the sum of the
 * header's bytes, in octal, in the header. Together with a mode and a size that are numbers,
 * the sum is surer than most magics. (The time need not be a number: tar reads an invalid one
 * as 0. A type that is not known is a file.)
 */

/* Fields of a header block: offset and length. */
enum {
    MODE_AT = 100,
    MODE_BYTES = 8,
    SIZE_AT = 124,
    SIZE_BYTES = 12,
    SUM_AT = 148,
    SUM_BYTES = 8,
};

#define SIZE_LIMIT (UINT64_C(1) << 62)

/*
 * Reads octal digits, maybe behind blanks. False: there are none, or another byte than a blank
 * ends them; behind the blank, the field may hold anything.
 */
static bool probe_read_octal(const uint8_t *field, size_t len, uint64_t *ret_value)
{
    size_t i = 0;
    uint64_t value = 0;
    while (i < len && (field[i] == ' ' || field[i] == 0))
        i++;
    size_t first = i;
    for (; i < len && field[i] >= '0' && field[i] <= '7'; i++)
        value = value << 3 | (uint64_t)(field[i] - '0');
    *ret_value = value;
    return i > first && (i == len || field[i] == ' ' || field[i] == 0);
}

/* Does a member's header start here? `block` is TAR_BLOCK_BYTES long. */
static bool tar_is_header(const uint8_t *block)
{
    uint64_t expected;
    if (!probe_read_octal(block + SUM_AT, SUM_BYTES, &expected))
        return false;

    /* The sum counts its own field as spaces. Some old programs added signed bytes. */
    uint32_t sum = 0, signed_sum = 0;
    for (size_t i = 0; i < TAR_BLOCK_BYTES; i++) {
        uint8_t byte = i >= SUM_AT && i < SUM_AT + SUM_BYTES ? ' ' : block[i];
        sum += byte;
        signed_sum += (uint32_t)(int8_t)byte;
    }
    if (sum != expected && signed_sum != expected)
        return false;

    /* Mode and size: octal, with anything behind its end; binary (GNU, star); or empty. */
    static const struct {
        uint8_t at, bytes;
    } numbers[] = {{MODE_AT, MODE_BYTES}, {SIZE_AT, SIZE_BYTES}};
    for (size_t i = 0; i < 2; i++) {
        const uint8_t *field = block + numbers[i].at;
        size_t len = numbers[i].bytes;
        if (!probe_read_octal(field, len, &expected) && !(field[0] & 0x80) &&
            !bytes_are_zero(field, len) && memcmp(field, "            ", len) != 0)
            return false;
    }
    return true;
}

/* How many bytes belong to this header. Less than 2^62. */
static uint64_t tar_size(const uint8_t *header)
{
    const uint8_t *field = header + SIZE_AT;
    uint64_t size = 0;
    if (field[0] & 0x80)
        for (size_t i = SIZE_BYTES - sizeof(size); i < SIZE_BYTES; i++)
            size = size << 8 | field[i];
    else
        (void)probe_read_octal(field, SIZE_BYTES, &size);
    return min_u64(size, SIZE_LIMIT - 1);
}

/* Where the next header lies behind this one, which is at `at`. */
static uint64_t tar_next(const uint8_t *header, uint64_t at)
{
    return at + TAR_BLOCK_BYTES +
           ((tar_size(header) + TAR_BLOCK_BYTES - 1) & ~(uint64_t)(TAR_BLOCK_BYTES - 1));
}

bool tar_probe_head(const uint8_t *head, size_t head_len)
{
    size_t at = 0;
    while (head_len - at >= TAR_BLOCK_BYTES && bytes_are_zero(head + at, TAR_BLOCK_BYTES))
        at += TAR_BLOCK_BYTES; /* an empty tar, which others may be joined to */
    return head_len >= TAR_BLOCK_BYTES &&
           (head_len - at >= TAR_BLOCK_BYTES ? tar_is_header(head + at)
                                             : bytes_are_zero(head + at, head_len - at));
}

/* A file without bytes has nothing but its name to tell its format. */
static bool probe_is_named_tar(const struct source *source)
{
    const char *name = source_name(source);
    size_t len = strlen(name);
    return len > 4 && strcmp(name + len - 4, ".tar") == 0;
}

static int tar_probe(const struct source *source, const uint8_t *head, size_t head_len)
{
    return head_len ? tar_probe_head(head, head_len) : probe_is_named_tar(source);
}

/*
 * A .lzma header has no magic. Programs that make one have dictionaries of 2^n or 2^n + 2^(n-1)
 * bytes, and liblzma asks for that, too, and for at most 256 GiB of content.
 */
static bool probe_is_lzma(const uint8_t *head, size_t len)
{
    enum { PROPERTIES = 5 * 5 * 9, LC_LP_MAX = 4, DICTIONARY_LEAST = 4096 };
    static const uint8_t unknown[8] = {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff};
    if (len < 13 || head[0] >= PROPERTIES || head[0] % 9 + head[0] / 9 % 5 > LC_LP_MAX)
        return false;
    uint32_t dictionary = bytes_le32(head + 1), lowest_bit = dictionary & -dictionary;
    if (dictionary < DICTIONARY_LEAST ||
        (dictionary != UINT32_MAX && dictionary / lowest_bit != 1 &&
         dictionary / lowest_bit != 3))
        return false;
    return (memcmp(head + 5, unknown, 8) == 0 ||
            (head[9] < 0x40 && bytes_are_zero(head + 10, 3)));
}

int tar_is_packed(const struct source *source, const uint8_t *head, size_t head_len,
                  const char **ret_compression)
{
    (void)source;
    static const struct {
        const char *name;
        uint8_t magic[6];
        uint8_t mask0; /* of the first byte */
        uint8_t len;
    } forms[] = {
        {"gzip", {0x1f, 0x8b, 8}, 0xff, 3},
        {"bzip2", {'B', 'Z', 'h'}, 0xff, 3},
        {"xz", {0xfd, '7', 'z', 'X', 'Z', 0}, 0xff, 6},
        {"zstd", {0x28, 0xb5, 0x2f, 0xfd}, 0xff, 4},
        {"zstd", {0x50, 0x2a, 0x4d, 0x18}, 0xf0, 4}, /* begins with a skippable frame */
        {"lz4", {0x04, 0x22, 0x4d, 0x18}, 0xff, 4},
        {"lz4", {0x02, 0x21, 0x4c, 0x18}, 0xff, 4}, /* of lz4 -l, and of programs before 2013 */
        {"lzip", {'L', 'Z', 'I', 'P'}, 0xff, 4},
        {"compress", {0x1f, 0x9d}, 0xff, 2},
    };
    for (size_t i = 0; i < sizeof(forms) / sizeof(forms[0]); i++) {
        if (head_len < 8 || (head[0] & forms[i].mask0) != forms[i].magic[0] ||
            memcmp(head + 1, forms[i].magic + 1, forms[i].len - 1u) != 0)
            continue;
        if (forms[i].magic[0] == 'B' && (head[3] < '1' || head[3] > '9'))
            continue;
        *ret_compression = forms[i].name;
        return 1;
    }
    if (!probe_is_lzma(head, head_len))
        return 0;
    *ret_compression = "lzma";
    return 1;
}

/* The magic of some compressions is text, but what follows it is not. */
static bool probe_is_text(const uint8_t *bytes, size_t len)
{
    for (size_t i = 0; i < len; i++)
        if ((bytes[i] < ' ' && bytes[i] != '\n' && bytes[i] != '\t') || bytes[i] > '~')
            return false;
    return true;
}

static int tar_find_behind(const struct front *front, uint64_t *ret_offset)
{
    enum { SAMPLE_BYTES = 64 };
    struct front place;
    const char *compression;
    for (size_t cursor = 0; front_next(front, &cursor, &place);) {
        bool is_tar = place.len >= TAR_BLOCK_BYTES && tar_is_header(place.bytes);
        if (!is_tar &&
            (tar_is_packed(front->source, place.bytes, place.len, &compression) != 1 ||
             probe_is_text(place.bytes, min_u64(place.len, SAMPLE_BYTES))))
            continue;
        *ret_offset = place.offset;
        return 1;
    }
    return 0;
}

/* Where the headers lead that can be found one after the other: to no header, or past the end.
 */
static uint64_t probe_walk(const struct source *source, uint8_t block[TAR_BLOCK_BYTES])
{
    uint64_t size = source_size(source), at = 0;
    while (size >= TAR_BLOCK_BYTES && at <= size - TAR_BLOCK_BYTES &&
           source_read(source, block, TAR_BLOCK_BYTES, at) == 0 && tar_is_header(block))
        at = tar_next(block, at);
    return at;
}

/*
 * Does it reach its end marker? Where a piece ends in zeros, and the next begins with a member,
 * only a walk can tell.
 */
static bool tar_is_whole(const struct source *source, bool by_end)
{
    uint8_t bytes[2 * TAR_BLOCK_BYTES];
    uint64_t size = source_size(source);
    if (size < sizeof(bytes) ||
        source_read(source, bytes, sizeof(bytes), size - sizeof(bytes)) < 0 ||
        !bytes_are_zero(bytes, sizeof(bytes)))
        return false;
    return by_end || (probe_walk(source, bytes) <= size - TAR_BLOCK_BYTES &&
                      bytes_are_zero(bytes, TAR_BLOCK_BYTES));
}

/* The last member leads to a place in `next`, where another header lies, or the end marker. */
static bool tar_continues(const struct source *source, const struct source *next, bool is_split)
{
    uint8_t block[TAR_BLOCK_BYTES];
    uint64_t size = source_size(source), at = probe_walk(source, block);
    if (at < size) /* a header is cut as well: not here */
        return size - at < TAR_BLOCK_BYTES;
    at -= size;
    if (at == 0 && is_split)
        return false;
    return source_size(next) < TAR_BLOCK_BYTES || at > source_size(next) - TAR_BLOCK_BYTES ||
           (source_read(next, block, sizeof(block), at) == 0 &&
            (tar_is_header(block) || bytes_are_zero(block, sizeof(block))));
}

/* Is there a block of zeros after the last data? */
static int probe_has_end_marker(const struct archive_end *end, bool *ret_has)
{
    uint8_t blocks[64][TAR_BLOCK_BYTES];
    uint64_t size = source_size(end->source);
    uint64_t at = (end->data_end + TAR_BLOCK_BYTES - 1) & ~(uint64_t)(TAR_BLOCK_BYTES - 1);
    *ret_has = false;
    while (!*ret_has && at < size && size - at >= TAR_BLOCK_BYTES &&
           !archive_end_stopped(end)) {
        size_t n = (size_t)min_u64(size - at, sizeof(blocks));
        int r = source_read(end->source, blocks, n, at);
        if (r < 0)
            return r;
        for (size_t i = 0; i < n / TAR_BLOCK_BYTES && !*ret_has; i++)
            *ret_has = bytes_are_zero(blocks[i], TAR_BLOCK_BYTES);
        at += n;
    }
    return 0;
}

/*
 * check_end of struct backend_trailer: without an end-of-archive marker a tar may have been cut
 * off between two members, which tar programs take for its end.
 */
static int tar_check_end(const struct archive_end *end)
{
    bool has_marker;
    if (end->compression || end->info->block_bytes > 0)
        return 0;
    int r = probe_has_end_marker(end, &has_marker);
    if (r < 0 || has_marker)
        return r;
    struct fault fault = {0};
    fault_set(&fault, -EUCLEAN, NULL, source_size(end->source),
              "it has no end-of-archive marker: maybe it was cut off, and members are missing");
    fault_advise(&fault, "compare it with its original, or copy it again");
    end->report(end->ctx, &fault);
    return 0;
}

/*
 * Tells libarchive that the format is tar.
 *
 * Its function for that refers to all formats that it knows. Where it is linked statically,
 * formats that need libxml2 or nettle are kept out: their names are defined here, before the
 * linker looks for them.
 */

/* Before `a` is connected to its data. */
static void tar_set_format(struct archive *a)
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

/*
 * Converts a member's attributes from libarchive's terms to the builder's: owner, times,
 * permissions, extended attributes, access lists.
 *
 * Access lists come as text and are shown as the kernel's own attributes hold them
 * (system.posix_acl_*), if they give users by number. Lists that give only names are left out:
 * the users of this node say nothing about the archive.
 */

#define TAR_NOBODY 65534 /* for owners that do not fit in 32 bits */

static uint32_t tar_owner(int64_t id, struct tar_oddities *odd)
{
    if (id >= 0 && id < UINT32_MAX)
        return (uint32_t)id;
    odd->owners = true;
    return TAR_NOBODY;
}

/*
 * Times. libarchive gives "-1.5" as second -1 and half a second, which would read as -0.5:
 * tar's decimal fraction counts away from zero, the system's always upwards.
 */
static void attributes_mtime(struct archive_entry *entry, struct node *member)
{
    if (!archive_entry_mtime_is_set(entry))
        return;
    member->mtime_sec = archive_entry_mtime(entry);
    long nsec = archive_entry_mtime_nsec(entry);
    if (member->mtime_sec < 0 && nsec > 0) {
        member->mtime_sec--;
        nsec = 1000000000 - nsec;
    }
    member->mtime_nsec = (uint32_t)nsec;
}

/*
 * The permission bits. libarchive overwrites them from an access list: the group's bits become
 * the owning group's, where stat(2) shows the mask.
 */
static uint32_t attributes_permissions(struct archive_entry *entry)
{
    uint32_t mode = (uint32_t)archive_entry_perm(entry) & 07777;
    if (!(archive_entry_acl_types(entry) & ARCHIVE_ENTRY_ACL_TYPE_ACCESS))
        return mode;
    int type, bits, tag, id;
    const char *name;
    archive_entry_acl_reset(entry, ARCHIVE_ENTRY_ACL_TYPE_ACCESS);
    while (archive_entry_acl_next(entry, ARCHIVE_ENTRY_ACL_TYPE_ACCESS, &type, &bits, &tag, &id,
                                  &name) == ARCHIVE_OK)
        if (tag == ARCHIVE_ENTRY_ACL_MASK)
            mode = (mode & ~070u) | (uint32_t)(bits & 7) << 3;
    return mode;
}

void tar_describe(struct archive_entry *entry, struct node *member, struct tar_oddities *odd)
{
    member->mode = S_IFREG | attributes_permissions(entry);
    member->uid = tar_owner(archive_entry_uid(entry), odd);
    member->gid = tar_owner(archive_entry_gid(entry), odd);
    attributes_mtime(entry, member);
}

int tar_describe_type(struct archive_entry *entry, struct node *member)
{
    mode_t type = archive_entry_filetype(entry);
    switch (type) {
    case AE_IFREG:
        return 0;
    case AE_IFDIR:
    case AE_IFIFO:
        break;
    case AE_IFCHR:
    case AE_IFBLK:
        member->rdev_major = (uint32_t)archive_entry_rdevmajor(entry);
        member->rdev_minor = (uint32_t)archive_entry_rdevminor(entry);
        break;
    case AE_IFLNK:
        member->link = archive_entry_symlink(entry);
        if (!member->link || !member->link[0])
            return -EINVAL;
        member->link_len = strlen(member->link);
        member->mode = 0777; /* as the system shows it, whatever was stored */
        break;
    default:
        return -ENOTSUP;
    }
    member->mode = type | (member->mode & 07777);
    member->size_bytes = 0;
    member->has_pieces = false;
    return 0;
}

struct attribute {
    char *name;
    const void *value;
    size_t value_len;
    size_t place;
};

static int attributes_compare(const void *a, const void *b)
{
    const struct attribute *x = a, *y = b;
    int r = strcmp(x->name, y->name);
    return r ? r : x->place < y->place ? -1 : x->place > y->place;
}

/* GNU tar writes "=" in a name as %3D, because "=" ends the name, and "%" as %25. */
static void attributes_decode_name(char *name)
{
    char *to = name;
    for (const char *from = name; *from; from++) {
        bool coded = strncmp(from, "%3D", 3) == 0 || strncmp(from, "%25", 3) == 0;
        *to++ = !coded ? *from : from[1] == '3' ? '=' : '%';
        from += coded ? 2 : 0;
    }
    *to = '\0';
}

static void attributes_free(struct attribute *list, size_t count)
{
    for (size_t i = 0; i < count; i++)
        free(list[i].name);
    free(list);
}

/* `count` attributes, sorted. The caller frees them. */
static int attributes_read(struct archive_entry *entry, size_t count,
                           struct attribute **ret_list)
{
    struct attribute *list = calloc(count, sizeof(*list));
    int r = list ? 0 : -ENOMEM;
    for (size_t i = 0; r == 0 && i < count; i++) {
        const char *name;
        list[i].place = i;
        if (archive_entry_xattr_next(entry, &name, &list[i].value, &list[i].value_len) !=
            ARCHIVE_OK)
            r = -EUCLEAN;
        else if (!(list[i].name = strdup(name)))
            r = -ENOMEM;
        else
            attributes_decode_name(list[i].name);
    }
    if (r < 0) {
        if (list)
            attributes_free(list, count);
        return r;
    }
    qsort(list, count, sizeof(*list), attributes_compare);
    *ret_list = list;
    return 0;
}

/*
 * Passes on attributes, each name once: bsdtar writes every attribute in two forms. libarchive
 * lists the header's last one first, and the last one counts.
 */
static int attributes_take_xattrs(struct archive_entry *entry, tar_take_attribute *take,
                                  void *ctx)
{
    size_t count = (size_t)archive_entry_xattr_reset(entry);
    if (count == 0)
        return 0;
    struct attribute *list;
    int r = attributes_read(entry, count, &list);
    if (r < 0)
        return r;
    for (size_t i = 0; r == 0 && i < count; i++) {
        if (i > 0 && strcmp(list[i].name, list[i - 1].name) == 0)
            continue;
        r = take(ctx, list[i].name, list[i].value, list[i].value_len);
    }
    attributes_free(list, count);
    return r;
}

/* ---- access lists ---- */

static uint16_t attributes_acl_tag(int tag)
{
    static const struct {
        int tag;
        uint16_t in_value;
    } tags[] = {
        {ARCHIVE_ENTRY_ACL_USER_OBJ, ACL_USER_OBJ},   {ARCHIVE_ENTRY_ACL_USER, ACL_USER},
        {ARCHIVE_ENTRY_ACL_GROUP_OBJ, ACL_GROUP_OBJ}, {ARCHIVE_ENTRY_ACL_GROUP, ACL_GROUP},
        {ARCHIVE_ENTRY_ACL_MASK, ACL_MASK},           {ARCHIVE_ENTRY_ACL_OTHER, ACL_OTHER}};
    for (size_t i = 0; i < sizeof(tags) / sizeof(tags[0]); i++)
        if (tags[i].tag == tag)
            return tags[i].in_value;
    return 0;
}

static int attributes_compare_acl_entries(const void *a, const void *b)
{
    const struct posix_acl_xattr_entry *x = a, *y = b;
    const uint32_t tags[] = {le16toh(x->e_tag), le16toh(y->e_tag)};
    const uint32_t ids[] = {le32toh(x->e_id), le32toh(y->e_id)};
    if (tags[0] != tags[1])
        return tags[0] < tags[1] ? -1 : 1;
    return ids[0] < ids[1] ? -1 : ids[0] > ids[1];
}

/*
 * The entries of one list, sorted as the kernel requires; 0 entries: the list can't be shown.
 */
static size_t attributes_read_acl(struct archive_entry *entry, int type,
                                  struct posix_acl_xattr_entry *list, size_t count,
                                  struct tar_oddities *odd)
{
    int got_type, permissions, tag, id;
    const char *name;
    size_t n = 0;
    while (n < count && archive_entry_acl_next(entry, type, &got_type, &permissions, &tag, &id,
                                               &name) == ARCHIVE_OK) {
        const uint16_t kind = attributes_acl_tag(tag);
        uint32_t number = (uint32_t)ACL_UNDEFINED_ID;
        if (kind == 0)
            return 0;
        if (kind == ACL_USER || kind == ACL_GROUP) {
            if (id < 0) {
                /* The entry names a user or group whose number this system does not know. */
                odd->acls = true;
                return 0;
            }
            number = (uint32_t)id;
        }
        list[n++] = (struct posix_acl_xattr_entry){
            htole16(kind), htole16((uint16_t)(permissions & 7)), htole32(number)};
    }
    qsort(list, n, sizeof(*list), attributes_compare_acl_entries);
    return n;
}

static int attributes_take_acl(struct archive_entry *entry, tar_take_attribute *take, void *ctx,
                               int type, const char *name, struct tar_oddities *odd)
{
    int count = archive_entry_acl_reset(entry, type);
    if (count <= 0 || (size_t)count > XATTR_SIZE_MAX / sizeof(struct posix_acl_xattr_entry) - 1)
        return 0;
    auto_free struct posix_acl_xattr_header *value =
        malloc(sizeof(*value) + (size_t)count * sizeof(struct posix_acl_xattr_entry));
    if (!value)
        return -ENOMEM;
    struct posix_acl_xattr_entry *list = (void *)(value + 1);
    size_t n = attributes_read_acl(entry, type, list, (size_t)count, odd);
    value->a_version = htole32(POSIX_ACL_XATTR_VERSION);
    return n ? take(ctx, name, value, sizeof(*value) + n * sizeof(*list)) : 0;
}

static int attributes_take_acls(struct archive_entry *entry, tar_take_attribute *take,
                                void *ctx, struct tar_oddities *odd)
{
    int types = archive_entry_acl_types(entry);
    int r = 0;
    if (types & ARCHIVE_ENTRY_ACL_TYPE_ACCESS)
        r = attributes_take_acl(entry, take, ctx, ARCHIVE_ENTRY_ACL_TYPE_ACCESS,
                                "system.posix_acl_access", odd);
    if (r == 0 && types & ARCHIVE_ENTRY_ACL_TYPE_DEFAULT)
        r = attributes_take_acl(entry, take, ctx, ARCHIVE_ENTRY_ACL_TYPE_DEFAULT,
                                "system.posix_acl_default", odd);
    return r;
}

int tar_take_attributes(struct archive_entry *entry, tar_take_attribute *take, void *ctx,
                        struct tar_oddities *odd)
{
    int r = attributes_take_xattrs(entry, take, ctx);
    return r < 0 ? r : attributes_take_acls(entry, take, ctx, odd);
}

/*
 * Feeds libarchive.
 *
 * From a mapping, libarchive gets the whole file as one block: nothing is copied, and skipping
 * a member's data is an addition. Without a mapping (network filesystems), reads grow while
 * members are small, so that the filesystem sees a sequential reader. After skipped data they
 * start small again, so that large members are not read just for the header behind them.
 */

enum {
    FIRST_READ_BYTES = 64 << 10,
    LAST_READ_BYTES = 1 << 20,
};

/* Hands the bytes of a source to libarchive, straight from its mapping if it has one. */
struct tar_feed {
    struct source *source;
    const uint8_t *map;
    uint8_t *buf;      /* only without a map */
    uint64_t offset;   /* of the next byte to hand out */
    size_t next_bytes; /* how much to read ahead without a map */
    int err;           /* -errno of the read that failed */
};

static ssize_t feed_read(struct archive *a, void *ctx, const void **ret_bytes)
{
    struct tar_feed *feed = ctx;
    uint64_t left = source_size(feed->source) - feed->offset;
    if (feed->map) {
        *ret_bytes = feed->map + feed->offset;
        feed->offset += left;
        return (ssize_t)left;
    }

    size_t len = feed->next_bytes < left ? feed->next_bytes : left;
    if (len == 0)
        return 0;
    feed->err = source_read(feed->source, feed->buf, len, feed->offset);
    if (feed->err < 0) {
        archive_set_error(a, -feed->err, "read error");
        return ARCHIVE_FATAL;
    }
    feed->offset += len;
    if (feed->next_bytes < LAST_READ_BYTES)
        feed->next_bytes *= 2;
    *ret_bytes = feed->buf;
    return (ssize_t)len;
}

static la_int64_t feed_skip(struct archive *a, void *ctx, la_int64_t request)
{
    (void)a;
    struct tar_feed *feed = ctx;
    uint64_t left = source_size(feed->source) - feed->offset;
    if (request <= 0)
        return 0;
    uint64_t len = (uint64_t)request < left ? (uint64_t)request : left;
    feed->offset += len;
    /* A short skip stays within the filesystem's own read-ahead. */
    if (len >= LAST_READ_BYTES)
        feed->next_bytes = FIRST_READ_BYTES;
    return (la_int64_t)len;
}

/*
 * Starts at `offset` and connects to `a`. Returns 0, -ENOMEM, or -EUCLEAN when libarchive does
 * not recognize the data (its error string has the reason).
 */
static int tar_feed_open(struct tar_feed *feed, struct source *source, uint64_t offset,
                         struct archive *a)
{
    *feed = (struct tar_feed){
        .source = source,
        .map = source_map(source),
        .offset = offset,
        .next_bytes = FIRST_READ_BYTES,
    };
    /* For pages not in the page cache: read ahead of the headers, not around them. */
    if (feed->map)
        madvise((void *)feed->map, source_size(source), MADV_SEQUENTIAL);
    if (!feed->map && !(feed->buf = malloc(LAST_READ_BYTES)))
        return -ENOMEM;
    archive_read_set_skip_callback(a, feed_skip);
    archive_read_set_read_callback(a, feed_read);
    archive_read_set_callback_data(a, feed);
    if (archive_read_open1(a) == ARCHIVE_OK)
        return 0;
    if (feed->err < 0)
        return feed->err;
    return archive_errno(a) == ENOMEM ? -ENOMEM : -EUCLEAN;
}

static void tar_feed_close(struct tar_feed *feed)
{
    if (feed->map)
        madvise((void *)feed->map, source_size(feed->source), MADV_NORMAL);
    free(feed->buf);
    feed->buf = NULL;
}

const char *tar_complaint(struct archive *a)
{
    const char *text = archive_error_string(a);
    return text ? text : "it ends too early";
}

enum {
    RECORD_BYTES = 20 * TAR_BLOCK_BYTES, /* tar's default */
    PROGRESS_MEMBERS = 64,               /* members between two reports of progress */
    TAIL_SEARCH_BYTES = 64 << 10,        /* read at once to pass zeros */
    PADDING_MOST = 64 << 20, /* zeros behind an end marker that members may follow */
};

/* A block of a stream. */
struct tar_block {
    const uint8_t *bytes;
    size_t len;
    uint64_t start; /* in the tar */
};

/*
 * Facts of extended headers that libarchive does not report, the current member's and global
 * ones. Starts as zeros.
 */
struct tar_records {
    unsigned headers;       /* how many; some writers produce two, and the last one counts, */
    bool is_sound;          /* unless this one is malformed */
    bool has_negative_time; /* "mtime=-..." */
    bool stores_holes;      /* Solaris' holes, which are stored as zeros */
    bool takes_globals;     /* global headers are read, too; else passed over */
    bool own_mtime, own_uid, own_gid;
    /* For all members without their own: */
    bool has_mtime, has_uid, has_gid;
    bool has_others; /* records that are not applied */
    int64_t mtime_sec;
    uint32_t mtime_nsec;
    int64_t uid, gid;
};

/* One walk over an archive. */
struct walk {
    struct source *source;
    uint64_t size_bytes;
    struct archive *archive;
    struct archive_entry *entry;
    struct tar_feed feed;
    /*
     * The unpacked tar, of which only the last bytes can be read again. NULL: the source is the
     * tar.
     */
    const struct tar_stream *stream;
    struct tar_block kept[2]; /* the stream's last block, behind the one before it */
    uint64_t given;           /* bytes of the stream so far */
    uint64_t again; /* offset from which bytes are given a second time; `given`: none are */
    struct tar_framed *framed;      /* finds the stream's bytes in the file; or NULL */
    const struct tar_stream *taker; /* the stream, if it gets its members, not the builder */
    struct builder *builder;
    struct progress *progress;
    struct fault *fault;
    uint64_t base;     /* where the tar begins that libarchive reads: one of several joined */
    uint64_t expected; /* where the next header must start */
    uint64_t astray; /* the end, behind extended headers without a member; 0: there are none */
    uint64_t members;
    uint32_t inode;                /* of the current member */
    bool is_cut;                   /* the last member's data continues in another volume */
    bool is_odd;                   /* libarchive can't read all that the member's headers say */
    bool ignores_zeros, is_behind; /* members behind an end marker are added, or counted */
    bool has_joined;               /* there were such, and they were added */
    uint64_t behind_count;         /* that were counted; the first: */
    struct fault behind;
    bool waits; /* `pieces`, which are in frames, for the next header */
    char last[sizeof((struct fault){0}.member)]; /* the last member read, for messages */
    VECTOR(struct builder_piece) pieces;         /* of the current member */
    struct tar_oddities odd;
    struct tar_records records;
};

/* How far libarchive has read, and where the last header begins, in all of the tar. */
static uint64_t tar_walk_at(const struct walk *w)
{
    return w->astray ? w->astray : w->base + (uint64_t)archive_filter_bytes(w->archive, 0);
}

static uint64_t tar_walk_header_at(const struct walk *w)
{
    return w->base + (uint64_t)archive_read_header_position(w->archive);
}

/* The result of looking at a member's headers, which may fill whole frames and be gone. */
static int tar_walk_unless_gone(const struct walk *w, int r)
{
    return r == -ENODATA && w->stream ? 0 : r;
}

/* ---- messages ---- */

static void tar_walk_remark(struct walk *w, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Appends a remark, as far as it fits. */
static void tar_walk_remark(struct walk *w, const char *format, ...)
{
    char *text = w->progress->note;
    size_t size = sizeof(w->progress->note), len = strnlen(text, size - 1);
    if (len && len + 2 < size) {
        memcpy(text + len, "; ", 3);
        len += 2;
    }
    va_list args;
    va_start(args, format);
    vsnprintf(text + len, size - len, format, args);
    va_end(args);
}

/* `what` stands where the next header should be. */
static int tar_walk_header_fault(struct walk *w, const char *what)
{
    return fault_set_advised(w->fault, -EUCLEAN, w->last, w->expected,
                             "make the archive again, or copy it again", "%s %s",
                             w->members ? "is followed by" : "begins with", what);
}

/* Words of libarchive's for headers that are sound, and more than it takes. */
static bool tar_walk_is_limit(const struct walk *w)
{
    return strncmp(tar_complaint(w->archive), "Special header too large", 24) == 0 ||
           strncmp(tar_complaint(w->archive), "Too many special headers", 24) == 0;
}

static int tar_walk_damaged_header(struct walk *w)
{
    char what[192];
    if (tar_walk_is_limit(w))
        return fault_set_advised(
            w->fault, -ENOTSUP, w->last, w->expected,
            "unpack it by tar and pack that, or make it by 'tar --format=gnu'",
            "%s extended headers that are longer than %s allows",
            w->members ? "is followed by" : "begins with", archive_version_string());
    snprintf(what, sizeof(what), "a damaged header (%s)", tar_complaint(w->archive));
    return tar_walk_header_fault(w, what);
}

static int tar_walk_member_fault(struct walk *w, int err, const char *what)
{
    return fault_set(w->fault, err, w->last, tar_walk_header_at(w), "%s", what);
}

/* libarchive could not go on; `status` is its result. */
static int tar_walk_read_fault(struct walk *w, int status)
{
    int err = w->stream ? *w->stream->error : 0;
    if (err < 0 && w->framed && w->fault && w->fault->err && !w->fault->member[0])
        memcpy(w->fault->member, w->last, sizeof(w->fault->member));
    if (err < 0)
        return err;
    if (w->stream)
        w->size_bytes = w->given;
    if (w->feed.err < 0)
        return fault_set_read(w->fault, w->feed.err, w->last, w->feed.offset);
    if (archive_errno(w->archive) == ENOMEM)
        return -ENOMEM;
    if (w->expected + TAR_BLOCK_BYTES > w->size_bytes)
        return fault_set_advised(w->fault, -EUCLEAN, w->last, w->size_bytes,
                                 "make the archive again, or copy it again",
                                 "the archive is truncated%s",
                                 w->members ? " after this member" : "");
    return status == ARCHIVE_RETRY
               ? tar_walk_header_fault(w, "something other than a tar header")
               : tar_walk_damaged_header(w);
}

/* ---- data ---- */

/* Finds where the member's data lies in the tar, and how much there is: w->pieces. */
static int tar_walk_find_pieces(struct walk *w, struct node *member, uint64_t *ret_stored)
{
    struct builder_piece piece = {.length = member->size_bytes,
                                  .source_offset = member->data_offset,
                                  .block = BUILDER_NO_BLOCK};
    la_int64_t offset, length;
    int r = 0;
    w->pieces.count = 0;
    *ret_stored = member->size_bytes;
    if (!member->has_pieces)
        return piece.length ? vector_push(&w->pieces, piece) : 0;
    archive_entry_sparse_reset(w->entry);
    while (r == 0 && archive_entry_sparse_next(w->entry, &offset, &length) == ARCHIVE_OK) {
        piece.offset = (uint64_t)offset;
        piece.length = (uint64_t)length;
        struct builder_piece *last =
            w->pieces.count ? &w->pieces.at[w->pieces.count - 1] : NULL;
        if (last && last->offset + last->length == piece.offset)
            last->length += piece.length;
        else if (length > 0) /* GNU tar marks the file's size with an empty range */
            r = vector_push(&w->pieces, piece);
        piece.source_offset += piece.length;
    }
    member->pieces = w->pieces.at;
    member->piece_count = w->pieces.count;
    *ret_stored = piece.source_offset - member->data_offset; /* no overlaps: below 2^63 */
    return r;
}

/* Where the member's data ends, not counting holes. Checked before the member is added. */
static int tar_walk_find_data_end(struct walk *w, const struct node *member, uint64_t stored,
                                  uint64_t *ret_end)
{
    uint64_t end;
    if (__builtin_add_overflow(member->data_offset, stored, &end))
        end = UINT64_MAX;
    w->is_cut = end > w->size_bytes && w->size_bytes % RECORD_BYTES == 0 && !w->stream;
    if (w->is_cut)
        return fault_set(w->fault, -EXDEV, w->last, member->header_offset,
                         "is cut off by the end of the archive, which has %" PRIu64
                         " of its %" PRIu64 " bytes: this is the first volume of a tar of "
                         "several (tar -M), or was not copied to its end",
                         w->size_bytes - member->data_offset, stored);
    if (end > w->size_bytes)
        return fault_set(w->fault, -EUCLEAN, w->last, member->header_offset,
                         "the archive is truncated in this member: it has %" PRIu64
                         " bytes of data, and %" PRIu64 " are left",
                         stored, w->size_bytes - member->data_offset);
    *ret_end = end;
    return 0;
}

/* Passes on the pieces. In frames their places are known when they were read. */
static int tar_walk_set_pieces(struct walk *w)
{
    w->waits = w->framed && w->pieces.count > 0;
    int r =
        w->waits ? 0 : builder_set_pieces(w->builder, w->inode, w->pieces.at, w->pieces.count);
    return r == -EUCLEAN ? tar_walk_member_fault(w, r, "its map of holes makes no sense") : r;
}

/* ---- members ---- */

static int tar_walk_take_attribute(void *ctx, const char *name, const void *value, size_t len)
{
    const struct walk *w = ctx;
    return builder_add_xattr(w->builder, w->inode, name, strlen(name), value, len);
}

static int tar_walk_add_named(struct walk *w, struct node *member)
{
    if (w->taker)
        return w->taker->add(w->taker->ctx, member, w->archive, w->entry, w->fault);
    if (w->framed && S_ISREG(member->mode) && w->pieces.count > 0)
        member->has_pieces = true;
    else if (w->framed)
        member->data_offset = 0; /* an offset in the tar is not one in the file */
    int r =
        builder_add(w->builder, member->path, member->path_len, member, w->fault, &w->inode);
    if (r == 0 && member->has_pieces)
        r = tar_walk_set_pieces(w);
    if (r == 0)
        r = tar_take_attributes(w->entry, tar_walk_take_attribute, w, &w->odd);
    return r;
}

/*
 * Adds a hard link. If it carries data (pax allows that), the data equals its target's and is
 * needed only when the target is not in the archive.
 */
static int tar_walk_add_link(struct walk *w, const char *target, struct node *member)
{
    struct node link = *member;
    link.is_hardlink = true;
    link.link = target;
    link.link_len = strlen(target);
    int r = w->taker
                ? w->taker->add(w->taker->ctx, &link, w->archive, w->entry, w->fault)
                : builder_add(w->builder, link.path, link.path_len, &link, w->fault, &w->inode);
    if (r == -ENOENT && member->size_bytes > 0) {
        *w->fault = (struct fault){0};
        return tar_walk_add_named(w, member);
    }
    return r;
}

/* For libarchive: the stream's next block, which is kept with the one before it. */
static ssize_t tar_walk_next_block(struct archive *a, void *ctx, const void **ret_bytes)
{
    struct walk *w = ctx;
    *ret_bytes = NULL;
    for (const struct tar_block *b = w->kept; b < w->kept + 2; b++) {
        if (w->again < b->start || w->again - b->start >= b->len)
            continue;
        size_t skip = (size_t)(w->again - b->start);
        w->again = b->start + b->len;
        *ret_bytes = b->bytes + skip;
        return (ssize_t)(b->len - skip);
    }
    ssize_t len = w->stream->next(a, w->stream->ctx, ret_bytes);
    w->kept[0] = w->kept[1];
    w->kept[1] = (struct tar_block){*ret_bytes, len > 0 ? (size_t)len : 0, w->given};
    w->again = w->given += w->kept[1].len;
    return len;
}

/* Bytes near the end of the blocks so far; -ENODATA: others. */
static int tar_walk_read_again(const struct walk *w, uint8_t *to, size_t len, uint64_t offset)
{
    for (const struct tar_block *b = w->kept; b < w->kept + 2; b++) {
        if (offset < b->start || offset - b->start >= b->len)
            continue;
        size_t at = (size_t)(offset - b->start), n = (size_t)min_u64(b->len - at, len);
        memcpy(to, b->bytes + at, n);
        to += n;
        len -= n;
        offset += n;
    }
    return len ? -ENODATA : 0;
}

/* Reads `len` bytes of the tar at `offset`: 0 or -errno. */
static int tar_walk_read_tar(const struct walk *w, void *buf, size_t len, uint64_t offset)
{
    if (w->feed.map && offset <= w->size_bytes && len <= w->size_bytes - offset) {
        memcpy(buf, w->feed.map + offset, len);
        return 0;
    }
    return w->stream ? tar_walk_read_again(w, buf, len, offset)
                     : source_read(w->source, buf, len, offset);
}

/*
 * Reads extended headers a second time, for facts that libarchive does not report.
 *
 * libarchive drops the sign of a modification time less than a second before 1970 ("-0.5"). So
 * the records are read again when a time lies within the first second after 1970, which is not
 * the time of any real file.
 *
 * Records of a global header ('g') apply to all later members without their own. libarchive
 * skips them; GNU tar and Python's tarfile apply them. This file applies the ones that archives
 * are made with: times and owners (`tar --pax-option=mtime=...`, `git archive` of a commit from
 * after 2242). One path or one size for all members makes no sense, so such records get a
 * remark. Comments, such as git archive's, do not matter.
 */

#define RECORDS_MAX (1u << 20) /* libarchive rejects longer extended headers */

/* Decimal seconds. In tar the fraction counts away from zero; in the system always upwards. */
static bool records_parse_time(const char *text, int64_t *ret_sec, uint32_t *ret_nsec)
{
    char *end;
    bool negative = text[0] == '-';
    if (text[negative] < '0' || text[negative] > '9')
        return false;
    errno = 0;
    long long sec = strtoll(text, &end, 10);
    uint32_t nsec = 0, unit = 100000000;
    if (*end == '.')
        for (end++; *end >= '0' && *end <= '9'; end++, unit /= 10)
            nsec += (uint32_t)(*end - '0') * unit;
    if (*end || errno || sec == INT64_MIN)
        return false;
    *ret_sec = negative && nsec ? sec - 1 : sec;
    *ret_nsec = negative && nsec ? 1000000000 - nsec : nsec;
    return true;
}

/* 1 to 18 digits. */
static bool records_parse_owner(const char *text, int64_t *ret_id)
{
    size_t digits = strspn(text, "0123456789");
    if (digits == 0 || digits > 18 || text[digits])
        return false;
    *ret_id = strtoll(text, NULL, 10);
    return true;
}

static bool records_would_matter(const char *key)
{
    return strcmp(key, "path") == 0 || strcmp(key, "linkpath") == 0 ||
           strcmp(key, "size") == 0 || strncmp(key, "GNU.sparse.", 11) == 0 ||
           strncmp(key, "SCHILY.xattr.", 13) == 0 || strncmp(key, "SCHILY.acl.", 11) == 0 ||
           strncmp(key, "LIBARCHIVE.xattr.", 17) == 0;
}

/*
 * Called for each extended header of type `type`: once without a record, then for each record.
 * A member's last header counts. In a global one, an empty value cancels an earlier value.
 */
static void records_take(struct tar_records *rs, char type, const char *key, const char *value)
{
    if (type == 'g' && !rs->takes_globals)
        return;
    if (!key && type != 'g') {
        rs->headers++;
        rs->has_negative_time = rs->own_mtime = rs->own_uid = rs->own_gid = false;
    }
    if (!key)
        return;
    const bool is_time = strcmp(key, "mtime") == 0;
    const bool is_uid = strcmp(key, "uid") == 0, is_gid = strcmp(key, "gid") == 0;
    if (type != 'g') {
        rs->own_mtime |= is_time;
        rs->own_uid |= is_uid;
        rs->own_gid |= is_gid;
        if (is_time)
            rs->has_negative_time = value[0] == '-';
        rs->stores_holes |= strcmp(key, "SUN.holesdata") == 0;
    } else if (is_time) {
        rs->has_mtime = records_parse_time(value, &rs->mtime_sec, &rs->mtime_nsec);
    } else if (is_uid) {
        rs->has_uid = records_parse_owner(value, &rs->uid);
    } else if (is_gid) {
        rs->has_gid = records_parse_owner(value, &rs->gid);
    } else {
        rs->has_others |= value[0] && records_would_matter(key);
    }
}

/*
 * Reads records "LENGTH KEY=VALUE\n", one behind the other, and terminates key and value in
 * place. Stops at a malformed record. Returns true if all were read.
 */
static bool records_take_all(struct tar_records *rs, char type, char *at, size_t len)
{
    records_take(rs, type, NULL, NULL);
    while (len > 0) {
        char *key;
        unsigned long record = strtoul(at, &key, 10);
        size_t digits = (size_t)(key - at);
        if (digits == 0 || record > len || record < digits + 3 || *key != ' ' ||
            at[record - 1] != '\n')
            return false;
        at[record - 1] = '\0';
        char *value = memchr(key, '=', record - digits);
        if (!value)
            return false;
        *value = '\0';
        records_take(rs, type, key + 1, value + 1);
        at += record;
        len -= record;
    }
    return true;
}

/*
 * Reads all records before the member whose headers lie in [from, to), global ones only if
 * asked for. Errors of reading; -ENOMEM; -EUCLEAN: a header that is too long.
 */
static int records_read(struct walk *w, uint64_t from, uint64_t to, bool takes_globals)
{
    struct tar_records *rs = &w->records;
    rs->takes_globals = takes_globals;
    rs->headers = 0;
    rs->is_sound = rs->has_negative_time = rs->stores_holes = false;
    while (from < to && to - from > TAR_BLOCK_BYTES) {
        uint8_t header[TAR_BLOCK_BYTES];
        int r = tar_walk_read_tar(w, header, sizeof(header), from);
        if (r < 0)
            return r;
        uint64_t len = tar_size(header);
        char type = (char)header[TAR_TYPE_AT];
        from += TAR_BLOCK_BYTES;
        if (!memchr("xXgLK", type, 5) || len > to - from)
            return 0;
        if (type == 'x' || type == 'X' || type == 'g') {
            auto_free char *text = len <= RECORDS_MAX ? malloc(len + 1) : NULL;
            if (!text)
                return len <= RECORDS_MAX ? -ENOMEM : -EUCLEAN;
            r = tar_walk_read_tar(w, text, len, from);
            if (r < 0)
                return r;
            text[len] = '\0';
            rs->is_sound = records_take_all(rs, type, text, len);
        }
        from += (len + TAR_BLOCK_BYTES - 1) & ~(uint64_t)(TAR_BLOCK_BYTES - 1);
    }
    return 0;
}

/*
 * Takes in the global headers among a member's headers, and applies their values to the member.
 */
static int tar_walk_apply_globals(struct walk *w, struct node *member)
{
    struct tar_records *rs = &w->records;
    const uint64_t from = member->header_offset, to = member->data_offset;
    const bool has_any = rs->has_mtime || rs->has_uid || rs->has_gid;
    uint8_t first[TAR_BLOCK_BYTES] = {0};
    int r = 0;
    rs->own_mtime = rs->own_uid = rs->own_gid = false;
    if (to - from > TAR_BLOCK_BYTES) { /* there is an extended header or a sparse map */
        r = tar_walk_read_tar(w, first, sizeof(first), from);
        if (r == 0 && (has_any || first[TAR_TYPE_AT] == 'g'))
            r = records_read(w, from, to, true);
    }
    if (r < 0)
        return tar_walk_unless_gone(w, r);
    if (rs->has_mtime && !rs->own_mtime) {
        member->mtime_sec = rs->mtime_sec;
        member->mtime_nsec = rs->mtime_nsec;
    }
    if (rs->has_uid && !rs->own_uid)
        member->uid = tar_owner(rs->uid, &w->odd);
    if (rs->has_gid && !rs->own_gid)
        member->gid = tar_owner(rs->gid, &w->odd);
    return 0;
}

/* ---- headers without a member ---- */

/*
 * Where headers without a member end, a volume's label and extended ones, which begin at `from`
 * in a tar of `size_bytes`; `from`: there is none.
 */
static int tar_walk_find_empty_end(const struct walk *w, uint64_t from, uint64_t size_bytes,
                                   uint64_t *ret_end)
{
    *ret_end = from;
    for (uint64_t at = from; at < size_bytes && size_bytes - at >= TAR_BLOCK_BYTES;) {
        uint8_t header[TAR_BLOCK_BYTES];
        int r = tar_walk_read_tar(w, header, sizeof(header), at);
        if (r < 0)
            return r;
        if (!memchr("VxXgLK", header[TAR_TYPE_AT], 6) || !tar_is_header(header))
            break;
        at = tar_next(header, at);
        *ret_end = at;
    }
    return 0;
}

/* ---- members ---- */

/* The type in the member's own header; 0: it can't be read again. */
static uint8_t tar_walk_header_type(const struct walk *w, const struct node *member)
{
    uint8_t header[TAR_BLOCK_BYTES];
    return member->data_offset >= sizeof(header) &&
                   tar_walk_read_tar(w, header, sizeof(header),
                                     member->data_offset - sizeof(header)) == 0
               ? header[TAR_TYPE_AT]
               : 0;
}

/*
 * A member of a type that the system lacks: the rest of a file that GNU tar began in an earlier
 * volume, or an unknown type.
 */
static int tar_walk_add_other(struct walk *w, const struct node *member)
{
    if (tar_walk_header_type(w, member) == 'M')
        return tar_walk_member_fault(
            w, -EXDEV, "is the rest of a file that begins in another volume of this tar");
    return tar_walk_member_fault(w, -ENOTBLK, "is of a type that no directory has");
}

static int tar_walk_add_by_type(struct walk *w, struct node *member)
{
    const char *target = archive_entry_hardlink(w->entry);
    if (target)
        return tar_walk_add_link(w, target, member);
    int r = tar_describe_type(w->entry, member);
    if (r == -ENOTSUP)
        return tar_walk_add_other(w, member);
    return r < 0 ? tar_walk_member_fault(w, r, "is a symbolic link without a target")
                 : tar_walk_add_named(w, member);
}

static int tar_walk_restore_minus(struct walk *w, struct node *member)
{
    int r = records_read(w, member->header_offset, member->data_offset, false);
    if (r == 0 && w->records.has_negative_time) {
        member->mtime_sec = -1;
        member->mtime_nsec = 1000000000 - member->mtime_nsec;
    }
    return tar_walk_unless_gone(w, r);
}

/*
 * A directory's size is a quota, without data. But GNU tar stores lists of names (D), and what
 * has no type and a name that ends in a slash may be a file with data.
 */
static void tar_walk_read_quota(const struct walk *w, struct node *member)
{
    uint8_t next[TAR_BLOCK_BYTES], type = tar_walk_header_type(w, member);
    if (type == '5' ||
        (type != 'D' && tar_walk_read_tar(w, next, sizeof(next), member->data_offset) == 0 &&
         tar_is_header(next)))
        member->size_bytes = 0;
}

/*
 * Solaris stores holes as zeros and only tells where they are. libarchive takes them for left
 * out when it skips the member's data, and loses its way unless it reads them.
 */
static int tar_walk_fill_holes(struct walk *w, struct node *member)
{
    const void *block;
    size_t len;
    la_int64_t offset;
    int r = records_read(w, member->header_offset, member->data_offset, false);
    if (r < 0 || !w->records.stores_holes)
        return tar_walk_unless_gone(w, r);
    member->has_pieces = false;
    while (!w->taker &&
           archive_read_data_block(w->archive, &block, &len, &offset) == ARCHIVE_OK)
        w->progress->beats++;
    return 0;
}

static int tar_walk_read_member(struct walk *w)
{
    const char *path = archive_entry_pathname(w->entry);
    snprintf(w->last, sizeof(w->last), "%s", path ? path : "");
    struct node member = {
        .path = path,
        .path_len = path ? strlen(path) : 0,
        .size_bytes = (uint64_t)archive_entry_size(w->entry),
        .data_offset = tar_walk_at(w),
        .header_offset = tar_walk_header_at(w),
        .has_pieces = archive_entry_sparse_count(w->entry) > 0,
    };
    tar_describe(w->entry, &member, &w->odd);
    if (archive_entry_size(w->entry) < 0)
        return tar_walk_member_fault(w, -EUCLEAN, "its size is negative");
    bool has_fraction = member.mtime_sec == 0 && member.mtime_nsec > 0;
    if ((has_fraction && tar_walk_restore_minus(w, &member) < 0) ||
        tar_walk_apply_globals(w, &member) < 0 ||
        (member.has_pieces && tar_walk_fill_holes(w, &member) < 0))
        return tar_walk_member_fault(w, -EIO, "its extended header can't be read again");

    if (archive_entry_filetype(w->entry) == AE_IFDIR && member.size_bytes > 0)
        tar_walk_read_quota(w, &member);

    uint64_t stored = 0, end = 0;
    int r = tar_walk_find_pieces(w, &member, &stored);
    if (r == 0)
        r = tar_walk_find_data_end(w, &member, stored, &end);
    if (r < 0)
        return r;
    w->expected = (end + TAR_BLOCK_BYTES - 1) & ~(uint64_t)(TAR_BLOCK_BYTES - 1);
    if (w->is_behind)
        return tar_walk_member_fault(w, -ESPIPE,
                                     "lies behind an end-of-archive mark: --ignore-zeros reads "
                                     "on there");
    if (!w->last[0])
        return tar_walk_member_fault(w, -EINVAL, "a member has no name");
    if (w->is_odd)
        return fault_set(w->fault, -EILSEQ, w->last, member.header_offset,
                         "has headers that can't be read (%s)", tar_complaint(w->archive));
    return tar_walk_add_by_type(w, &member);
}

static int tar_walk_leave_out(const struct walk *w, const struct fault *why)
{
    return w->taker ? w->taker->leave_out(w->taker->ctx, why)
                    : builder_leave_out(w->builder, why);
}

/* Adds the member just read. A member that can't be shown is left out, without an error. */
static int tar_walk_add_member(struct walk *w)
{
    struct fault *fault = w->fault, own = {0};
    w->fault = &own;
    int r = tar_walk_read_member(w);
    w->fault = fault;
    if (r == -ESPIPE && w->behind_count++ == 0)
        w->behind = own;
    if (r == -ESPIPE && w->taker) /* told at the end, in one line */
        return 0;
    if (builder_may_leave_out(r) && own.err)
        return tar_walk_leave_out(w, &own);
    if (r < 0 && fault && !fault->err)
        *fault = own;
    return r;
}

/* The last member's data has to end where libarchive found the next header. */
static int tar_walk_check_position(struct walk *w)
{
    uint64_t at = tar_walk_header_at(w);
    if (at == w->expected)
        return 0;
    return fault_set(w->fault, -EUCLEAN, w->last, w->expected,
                     "its data ends at %" PRIu64 ", but its size says %" PRIu64
                     ": a kind of tar that is not known, or damaged",
                     at, w->expected);
}

/* The previous member's data has now been read, so its frames are known. */
static int tar_walk_settle(struct walk *w)
{
    if (!w->waits)
        return 0;
    w->waits = false;
    int r = tar_framed_set_pieces(w->framed, w->inode, w->pieces.at, w->pieces.count);
    return r == -EUCLEAN ? tar_walk_member_fault(w, r, "its data is not where it should be")
                         : r;
}

/*
 * Is this a warning about a name that is not ASCII, or about an extended header that a later
 * one replaces? All other warnings mean that something of the member is lost.
 */
static bool tar_walk_is_harmless(struct walk *w)
{
    return archive_errno(w->archive) == EILSEQ ||
           (records_read(w, tar_walk_header_at(w), tar_walk_at(w), false) == 0 &&
            w->records.headers > 1 && w->records.is_sound);
}

/*
 * Is this a warning about this member alone? libarchive has words for it, but no number. After
 * some other warnings it reads the next members wrongly, too (those about maps of holes).
 */
static bool tar_walk_is_odd(struct walk *w)
{
    static const char *const own[] = {"Ignoring malformed pax", "Malformed Solaris ACL"};
    const char *complaint = tar_complaint(w->archive);
    return strncmp(complaint, own[0], strlen(own[0])) == 0 ||
           strncmp(complaint, own[1], strlen(own[1])) == 0;
}

/*
 * Reads a header. libarchive takes a file whose name ends in a slash for a directory, as the
 * oldest tars have them, and the file's data for headers, which it can't read.
 */
static int tar_walk_next_header(struct walk *w)
{
    int r;
    do {
        r = archive_read_next_header2(w->archive, w->entry);
        w->progress->beats++;
    } while (r == ARCHIVE_RETRY && tar_walk_header_at(w) < w->expected);
    return r;
}

/*
 * Do extended headers end the tar, whose member was never written? libarchive takes that for
 * damage, and other programs for the end.
 */
static bool tar_walk_ends_astray(struct walk *w)
{
    uint8_t block[TAR_BLOCK_BYTES];
    uint64_t end, size = w->stream ? w->given : w->size_bytes;
    if (tar_walk_find_empty_end(w, w->expected, size, &end) < 0 || end == w->expected ||
        end > size)
        return false;
    bool has_more = size > end;
    if (has_more &&
        (size - end < sizeof(block) || tar_walk_read_tar(w, block, sizeof(block), end) < 0 ||
         !bytes_are_zero(block, sizeof(block))))
        return false;
    tar_walk_remark(
        w, "its end has an extended header at %" PRIu64 " for a member that is not there",
        w->expected);
    w->astray = has_more ? end + sizeof(block) : end;
    return true;
}

/* 1: a member was read; 0: the end. */
static int tar_walk_next_member(struct walk *w)
{
    int r = tar_walk_next_header(w);
    w->is_odd = r == ARCHIVE_WARN && !tar_walk_is_harmless(w);
    if (w->is_odd && !tar_walk_is_odd(w))
        return tar_walk_damaged_header(w);
    if (r == ARCHIVE_FATAL && tar_walk_ends_astray(w))
        r = ARCHIVE_EOF;
    if (r != ARCHIVE_EOF && r != ARCHIVE_WARN && r != ARCHIVE_OK)
        return tar_walk_read_fault(w, r);
    bool is_end = r == ARCHIVE_EOF;
    r = w->astray ? 0 : tar_walk_check_position(w);
    if (r == 0)
        r = tar_walk_settle(w);
    return r < 0 ? r : !is_end;
}

static void tar_walk_tell_progress(struct walk *w)
{
    w->progress->members = w->members;
    if (!w->stream) /* else who reads the file tells it */
        w->progress->bytes_done = w->expected;
}

static int tar_walk_read_members(struct walk *w)
{
    int r = 0;
    while (!w->is_cut && (r = tar_walk_next_member(w)) == 1) {
        r = tar_walk_add_member(w);
        if (r < 0)
            return r;
        w->members++;
        if (w->members % PROGRESS_MEMBERS == 0)
            tar_walk_tell_progress(w);
    }
    tar_walk_tell_progress(w);
    return r < 0 ? r : 0;
}

/* ---- the end ---- */

static const char no_end_marker[] = "it has no end-of-archive marker: members are missing if "
                                    "its writer was interrupted, or its last part is not there";

static int tar_walk_not_empty(struct walk *w, uint64_t offset, const uint8_t *block)
{
    return fault_set_advised(
        w->fault, -EUCLEAN, NULL, offset,
        tar_is_header(block) ? "if it is several tars, joined, read them with --ignore-zeros"
                             : "",
        "begins with zeros, as an empty tar does, but is none: other bytes follow");
}

/*
 * Reads on from `at` to the first block that is not all zeros, or that is a header, within
 * `most` bytes: 1, the block and its place; 0: there is none.
 */
static int tar_walk_pass(struct walk *w, bool to_header, uint64_t at, uint64_t most,
                         uint8_t block[TAR_BLOCK_BYTES], uint64_t *ret_at)
{
    auto_free uint8_t *bytes = malloc(TAIL_SEARCH_BYTES);
    const void *ignored;
    uint64_t begin = at;
    if (!bytes)
        return -ENOMEM;
    while (at - begin < most) {
        size_t len = (size_t)min_u64(
            w->stream ? TAR_BLOCK_BYTES : TAIL_SEARCH_BYTES,
            (w->stream || w->size_bytes < at ? TAR_BLOCK_BYTES : w->size_bytes - at));
        w->progress->beats += at % TAIL_SEARCH_BYTES == 0;
        if (w->stream && at + len > w->given) {
            w->again = w->given;
            if (tar_walk_next_block(w->archive, w, &ignored) <= 0)
                return *w->stream->error;
            continue;
        }
        if (len < TAR_BLOCK_BYTES || (!w->stream && at >= w->size_bytes))
            return 0;
        int r = tar_walk_read_tar(w, bytes, len, at);
        if (r < 0)
            return r == -ENODATA ? 0 : r;
        for (size_t i = 0; i + TAR_BLOCK_BYTES <= len; i += TAR_BLOCK_BYTES)
            if (to_header ? tar_is_header(bytes + i)
                          : !bytes_are_zero(bytes + i, TAR_BLOCK_BYTES)) {
                memcpy(block, bytes + i, TAR_BLOCK_BYTES);
                *ret_at = at + i;
                return 1;
            }
        at += len;
    }
    return 0;
}

/*
 * A tar without members is all zeros, but for a label and the like. Disk images and other files
 * may also begin with zeros.
 */
static int tar_walk_check_empty(struct walk *w)
{
    uint64_t begin = 0, at;
    uint8_t block[TAR_BLOCK_BYTES];
    int r = tar_walk_find_empty_end(w, 0, w->size_bytes, &begin);
    if (r == 0)
        r = tar_walk_pass(w, false, begin, UINT64_MAX, block, &at);
    if (r != 0)
        return r < 0 ? r : tar_walk_not_empty(w, at, block);
    if (begin > 0 && begin + TAR_BLOCK_BYTES > w->size_bytes)
        tar_walk_remark(w, "%s", no_end_marker);
    if (w->size_bytes == 0)
        tar_walk_remark(w, "it is empty: an archive of nothing, or its writer did not finish");
    if (begin == 0 && w->size_bytes > RECORD_BYTES)
        tar_walk_remark(
            w, "it holds nothing but zeros: an empty tar, or a file that was never written");
    return 0;
}

/* Does a block of zeros end the tar that was read? */
static int tar_walk_has_end_marker(const struct walk *w, bool *ret_has)
{
    uint8_t block[TAR_BLOCK_BYTES];
    uint64_t end = tar_walk_at(w);
    *ret_has = false;
    if (end < w->expected + TAR_BLOCK_BYTES || end > (w->stream ? w->given : w->size_bytes))
        return 0;
    int r = tar_walk_read_tar(w, block, sizeof(block), end - sizeof(block));
    *ret_has = r == 0 && bytes_are_zero(block, sizeof(block));
    if (r == -ENODATA && w->framed) { /* it was passed long ago: more data follows */
        *ret_has = true;
        return 0;
    }
    return r;
}

/*
 * Behind the end marker, which zeros may follow as tar's padding: 1: another tar begins at
 * w->base; 0: nothing does. tar ignores bytes that are no header, and all behind them;
 * but an index may be there, as in archives of onepot, and --ignore-zeros goes on to a header.
 */
static int tar_walk_go_on(struct walk *w)
{
    static const char index_magic[] = "onepotIX";
    const uint64_t most = w->ignores_zeros || w->taker ? UINT64_MAX : PADDING_MOST;
    uint8_t block[TAR_BLOCK_BYTES];
    uint64_t at, begin;
    begin = max_u64(tar_walk_at(w), w->base + TAR_BLOCK_BYTES);
    int r = tar_walk_pass(w, false, begin, most, block, &at);
    if (r <= 0)
        return r;
    if (!w->members && !w->last[0] && !w->ignores_zeros)
        return tar_walk_not_empty(w, at, block);
    bool is_index = memcmp(block, index_magic, strlen(index_magic)) == 0;
    bool is_rubbish = !is_index && !tar_is_header(block);
    if (is_rubbish && !w->ignores_zeros)
        return 0;
    begin = at;
    r = tar_walk_pass(w, true, at, most, block, &at);
    if (r >= 0 && is_rubbish) {
        struct fault why = {0};
        fault_set(&why, -EILSEQ, w->last, begin,
                  "is followed by bytes that are no tar: members may be missing");
        int err = tar_walk_leave_out(w, &why);
        r = err < 0 ? err : r;
    }
    if (r <= 0)
        return r;
    w->base = w->expected = w->again = at;
    w->has_joined |= w->ignores_zeros;
    w->is_behind = !w->ignores_zeros;
    return 1;
}

/*
 * libarchive ends at a block of zeros, or where there is nothing more. Without members, no more
 * than a label and extended headers may come before that.
 */
static int tar_walk_check_stream_end(struct walk *w)
{
    uint64_t begin = w->expected;
    int r = w->members ? 0 : tar_walk_find_empty_end(w, 0, w->given, &begin);
    if (r == -ENODATA) /* so much came before */
        return 0;
    if (r == 0 && w->given < begin + TAR_BLOCK_BYTES)
        return fault_set_advised(w->fault, -EUCLEAN, w->last, w->given,
                                 "send it again; if it was made so, pack it from a file",
                                 "%s end-of-archive marker: the stream was cut off",
                                 w->members ? "is followed by the end of the stream, without an"
                                            : "has no");
    return r;
}

/* As tar_walk_go_on, with a remark if the marker is missing. Of a stream that is an error. */
static int tar_walk_end(struct walk *w)
{
    bool has_marker = false;
    if (w->is_cut || (!w->members && !w->ignores_zeros && !w->taker))
        return 0;
    int r = tar_walk_has_end_marker(w, &has_marker);
    if (r < 0)
        return r;
    if (w->taker)
        r = tar_walk_check_stream_end(w);
    else if (!has_marker && !w->is_behind)
        tar_walk_remark(w, "%s", no_end_marker);
    return r == 0 && (has_marker || w->taker) ? tar_walk_go_on(w) : r;
}

static void tar_walk_note_oddities(struct walk *w)
{
    if (w->odd.owners)
        tar_walk_remark(w, "owners that do not fit are shown as %d", TAR_NOBODY);
    if (w->odd.acls)
        tar_walk_remark(w, "access lists with users without a number are not shown");
    if (w->records.has_others)
        tar_walk_remark(w, "global headers with more than times and owners are not applied");
}

static void tar_walk_disconnect(struct walk *w)
{
    archive_entry_free(w->entry);
    if (w->archive)
        archive_read_free(w->archive);
    w->entry = NULL;
    w->archive = NULL;
    tar_feed_close(&w->feed);
}

/* Connects libarchive to the bytes of the tar at w->base. */
static int tar_walk_connect(struct walk *w)
{
    tar_walk_disconnect(w);
    w->astray = 0;
    w->archive = archive_read_new();
    w->entry = w->archive ? archive_entry_new2(w->archive) : NULL;
    if (!w->entry)
        return -ENOMEM;
    tar_set_format(w->archive);
    int r = 0;
    if (!w->stream) {
        r = tar_feed_open(&w->feed, w->source, w->base, w->archive);
    } else {
        archive_read_set_read_callback(w->archive, tar_walk_next_block);
        archive_read_set_callback_data(w->archive, w);
        r = archive_read_open1(w->archive) == ARCHIVE_OK ? 0 : -EUCLEAN;
    }
    return r == -EUCLEAN ? tar_walk_read_fault(w, ARCHIVE_FATAL) : r;
}

/* Nothing behind the end marker makes the archive bad, but for its bytes that can't be had. */
static int tar_walk_forgive(struct walk *w, int r)
{
    bool is_unread = w->feed.err < 0 || (w->stream && *w->stream->error < 0);
    if (r != -EUCLEAN || is_unread)
        return r;
    if (w->fault)
        *w->fault = (struct fault){0};
    return 0;
}

/* Members behind the end marker are told one by one, but for a taker, which wants a line. */
static int tar_walk_tell_behind(struct walk *w)
{
    if (w->behind_count == 0)
        fault_set(&w->behind, -ESPIPE, w->last, w->base,
                  "is followed by an end-of-archive mark, and by more that can't be read");
    else if (w->behind_count > 1)
        snprintf(w->behind.what, sizeof(w->behind.what),
                 "lies behind an end-of-archive mark, and so do %" PRIu64
                 " more members: --ignore-zeros reads on there",
                 w->behind_count - 1);
    return w->taker || w->behind_count == 0 ? tar_walk_leave_out(w, &w->behind) : 0;
}

/* Reads all tars that are joined, or counts the members behind the first one's end. */
static int tar_walk_read_tars(struct walk *w)
{
    int r;
    do {
        r = tar_walk_connect(w);
        if (r == 0)
            r = tar_walk_read_members(w);
        if (r == 0)
            r = tar_walk_end(w);
        if (w->is_behind)
            r = tar_walk_forgive(w, r);
    } while (r == 1);
    return r == 0 && w->is_behind ? tar_walk_tell_behind(w) : r;
}

static int tar_walk_archive(struct walk *w)
{
    if (w->size_bytes == 0)
        return tar_walk_check_empty(w);
    int r = tar_walk_read_tars(w);
    if (r == 0 && w->members == 0)
        return w->framed ? -ENOTSUP : tar_walk_check_empty(w);
    if (r == 0)
        tar_walk_note_oddities(w);
    return r;
}

/* Calls `read` with libarchive's objects, in the C locale. */
static int tar_walk_run(struct walk *w, int (*read)(struct walk *w))
{
    int r = -ENOMEM;
    locale_t c_locale = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    if (c_locale) {
        locale_t before = uselocale(c_locale);
        r = read(w);
        uselocale(before);
        freelocale(c_locale);
    }
    tar_walk_disconnect(w);
    vector_free(&w->pieces);
    return r;
}

/* Walks through the tar in the source: the source itself, or the content of its frames. */
static int tar_walk_source(struct source *source, struct tar_framed *framed,
                           struct builder *builder, struct builder_header *header,
                           struct progress *progress, struct fault *fault)
{
    auto_free struct walk *w = calloc(1, sizeof(*w));
    if (!w)
        return -ENOMEM;
    w->source = source;
    w->framed = framed;
    w->size_bytes = framed ? UINT64_MAX : source_size(source);
    w->builder = builder;
    w->ignores_zeros = header->ignores_zeros;
    w->progress = progress;
    w->fault = fault;
    struct tar_stream frames;
    if (framed) {
        frames = tar_framed_stream(framed);
        w->stream = &frames;
    }
    progress->bytes_total = source_size(source);
    int r = tar_walk_run(w, tar_walk_archive);
    header->has_joined = w->has_joined;
    /*
     * Not a tar: unpacking finds better words for that. But a damaged frame is reported here.
     */
    bool is_none = framed && *w->stream->error != -EUCLEAN && w->members == 0;
    return r == -EUCLEAN && is_none ? -ENOTSUP : r;
}

/* ---- a stream ---- */

/* Reads the rest of the stream. */
static int tar_walk_drain(struct walk *w)
{
    const void *ignored;
    w->again = w->given;
    while (tar_walk_next_block(w->archive, w, &ignored) > 0)
        w->progress->beats++;
    return *w->stream->error;
}

static int tar_walk_stream(struct walk *w)
{
    int r = tar_walk_read_tars(w);
    if (r == 0)
        r = tar_walk_drain(w);
    if (r == 0)
        tar_walk_note_oddities(w);
    return r;
}

int tar_take_members(const struct tar_stream *stream, bool ignores_zeros,
                     struct progress *progress, struct fault *fault)
{
    auto_free struct walk *w = calloc(1, sizeof(*w));
    if (!w)
        return -ENOMEM;
    w->stream = w->taker = stream;
    w->ignores_zeros = ignores_zeros;
    w->size_bytes = UINT64_MAX;
    w->progress = progress;
    w->fault = fault;
    return tar_walk_run(w, tar_walk_stream);
}

static int tar_index(struct source *source, struct builder *builder,
                     struct builder_header *header, struct progress *progress,
                     struct fault *fault)
{
    header->codec = CODEC_NONE;
    header->block_bytes = 0;
    return tar_walk_source(source, NULL, builder, header, progress, fault);
}

static int tar_index_packed(struct source *source, const char *compression,
                            struct helpers *helpers, uint64_t *left_bytes,
                            struct builder *builder, struct builder_header *header,
                            struct progress *progress, struct fault *fault)
{
    struct tar_framed *framed;
    int r = tar_framed_new(source, compression, helpers, left_bytes, builder, progress, fault,
                           &framed);
    if (r < 0)
        return r;
    r = tar_walk_source(source, framed, builder, header, progress, fault);
    if (r == 0)
        r = tar_framed_finish(framed, header);
    tar_framed_free(framed);
    return r;
}

static const char *const endings[] = {".tar", ".tgz", ".tbz2", ".txz", NULL};

static const struct backend_stream tar_stream = {
    .is_packed = tar_is_packed,
    .unpack = tar_unpack,
    .index_packed = tar_index_packed,
};

static const struct backend_trailer tar_trailer = {.check_end = tar_check_end};

const struct backend backend_tar = {
    .name = "tar",
    .file = "a tar",
    .endings = endings,
    .number = 1,
    .probe = tar_probe,
    .is_whole = tar_is_whole,
    .continues = tar_continues,
    .find_behind = tar_find_behind,
    .index = tar_index,
    .stream = &tar_stream,
    .trailer = &tar_trailer,
};
