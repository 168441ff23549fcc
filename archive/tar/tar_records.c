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
#include "tar_private.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cleanup.h"

#define RECORDS_MAX (1u << 20) /* libarchive rejects longer extended headers */

/*
 * Called for each extended header of type `type`: once without a record, then for each record.
 */
typedef void take_record(void *ctx, char type, const char *key, const char *value);

/*
 * Reads records "LENGTH KEY=VALUE\n", one behind the other, and terminates key and value in
 * place. Stops at a malformed record. Returns true if all were read.
 */
static bool records_take_all(char *at, size_t len, char type, take_record *take, void *take_ctx)
{
    take(take_ctx, type, NULL, NULL);
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
        take(take_ctx, type, key + 1, value + 1);
        at += record;
        len -= record;
    }
    return true;
}

static int records_read(tar_read *read, const void *ctx, uint64_t offset, uint64_t len,
                        char type, take_record *take, void *take_ctx, bool *ret_whole)
{
    auto_free char *records = len <= RECORDS_MAX ? malloc(len + 1) : NULL;
    if (!records)
        return len <= RECORDS_MAX ? -ENOMEM : -EUCLEAN;
    int r = read(ctx, records, len, offset);
    if (r < 0)
        return r;
    records[len] = '\0';
    *ret_whole = records_take_all(records, len, type, take, take_ctx);
    return 0;
}

/*
 * Passes on all records before the member whose headers lie in [from, to). *ret_whole: the last
 * header's records could be read to the end.
 */
static int records_walk(tar_read *read, const void *ctx, uint64_t from, uint64_t to,
                        take_record *take, void *take_ctx, bool *ret_whole)
{
    while (from < to && to - from > TAR_BLOCK_BYTES) {
        uint8_t header[TAR_BLOCK_BYTES];
        int r = read(ctx, header, sizeof(header), from);
        if (r < 0)
            return r;
        uint64_t len = tar_size(header);
        char type = (char)header[TAR_TYPE_AT];
        from += TAR_BLOCK_BYTES;
        if (!memchr("xXgLK", type, 5) || len > to - from)
            return 0;
        if (type == 'x' || type == 'X' || type == 'g')
            r = records_read(read, ctx, from, len, type, take, take_ctx, ret_whole);
        if (r < 0)
            return r;
        from += (len + TAR_BLOCK_BYTES - 1) & ~(uint64_t)(TAR_BLOCK_BYTES - 1);
    }
    return 0;
}

/* ---- facts ---- */

static void records_take_fact(void *ctx, char type, const char *key, const char *value)
{
    struct tar_facts *facts = ctx;
    if (type == 'g')
        return;
    if (!key) {
        facts->headers++;
        facts->has_negative_time = false; /* the last header counts */
    } else if (strcmp(key, "mtime") == 0) {
        facts->has_negative_time = value[0] == '-';
    } else if (strcmp(key, "SUN.holesdata") == 0) {
        facts->stores_holes = true;
    }
}

int tar_find_facts(tar_read *read, const void *ctx, uint64_t from, uint64_t to,
                   struct tar_facts *ret_facts)
{
    *ret_facts = (struct tar_facts){0};
    return records_walk(read, ctx, from, to, records_take_fact, ret_facts,
                        &ret_facts->is_sound);
}

/* ---- headers without a member ---- */

int tar_find_empty_end(tar_read *read, const void *ctx, uint64_t from, uint64_t size_bytes,
                       uint64_t *ret_end)
{
    *ret_end = from;
    for (uint64_t at = from; at < size_bytes && size_bytes - at >= TAR_BLOCK_BYTES;) {
        uint8_t header[TAR_BLOCK_BYTES];
        int r = read(ctx, header, sizeof(header), at);
        if (r < 0)
            return r;
        if (!memchr("VxXgLK", header[TAR_TYPE_AT], 6) || !tar_is_header(header))
            break;
        at = tar_next(header, at);
        *ret_end = at;
    }
    return 0;
}

/* ---- global records ---- */

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

/* An empty value cancels what an earlier header set. */
static void records_take_global(void *ctx, char type, const char *key, const char *value)
{
    struct tar_globals *g = ctx;
    if (!key) {
        if (type != 'g')
            g->own_mtime = g->own_uid = g->own_gid = false;
        return;
    }
    bool is_time = strcmp(key, "mtime") == 0;
    bool is_uid = strcmp(key, "uid") == 0, is_gid = strcmp(key, "gid") == 0;
    if (type != 'g') {
        g->own_mtime |= is_time;
        g->own_uid |= is_uid;
        g->own_gid |= is_gid;
    } else if (is_time) {
        g->has_mtime = records_parse_time(value, &g->mtime_sec, &g->mtime_nsec);
    } else if (is_uid) {
        g->has_uid = records_parse_owner(value, &g->uid);
    } else if (is_gid) {
        g->has_gid = records_parse_owner(value, &g->gid);
    } else {
        g->has_others |= value[0] && records_would_matter(key);
    }
}

int tar_apply_globals(struct tar_globals *g, tar_read *read, const void *ctx, uint64_t from,
                      uint64_t to, struct builder_member *member, struct tar_oddities *odd)
{
    bool has_any = g->has_mtime || g->has_uid || g->has_gid, whole;
    uint8_t first[TAR_BLOCK_BYTES] = {0};
    g->own_mtime = g->own_uid = g->own_gid = false;
    int r = 0;
    if (to - from > TAR_BLOCK_BYTES) { /* there is an extended header or a sparse map */
        r = read(ctx, first, sizeof(first), from);
        if (r == 0 && (has_any || first[TAR_TYPE_AT] == 'g'))
            r = records_walk(read, ctx, from, to, records_take_global, g, &whole);
    }
    if (r < 0)
        return r;
    if (g->has_mtime && !g->own_mtime) {
        member->mtime_sec = g->mtime_sec;
        member->mtime_nsec = g->mtime_nsec;
    }
    if (g->has_uid && !g->own_uid)
        member->uid = tar_owner(g->uid, odd);
    if (g->has_gid && !g->own_gid)
        member->gid = tar_owner(g->gid, odd);
    return 0;
}
