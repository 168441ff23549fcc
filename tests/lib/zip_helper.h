/* Zips for the suites of formats, whose local headers and directory may disagree. */
#ifndef ONEPOT_TESTS_ZIP_HELPER_H
#define ONEPOT_TESTS_ZIP_HELPER_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "bytes.h"
#include "checksum.h"

#define ZIP_FILE_MODE 0100644u

/* What is 0 or NULL is as a plain stored file has it. */
struct zip_member {
    const char *name;
    const void *data; /* as it lies in the archive */
    size_t packed;    /* its length; 0: strlen of `data` */
    const void *extra;
    size_t extra_len;
    uint16_t method, flags, date;
    uint32_t size, crc; /* of a compressed member */
    uint32_t mode;
    uint8_t host; /* with `mode` 0; else it is Unix */
    /* Where its own header differs from the directory. */
    const char *local_name;
    uint16_t local_method, local_flags; /* method: plus one */
    uint32_t local_size, local_crc;
    uint32_t entry_packed, entry_size; /* where the directory has others */
    const struct zip_member *same_as;  /* it has no header, and is at that one's */
    uint32_t at;                       /* set by zip_put */
};

static inline uint8_t *zip_put_header(uint8_t *p, const struct zip_member *m, bool is_local)
{
    const char *name = is_local && m->local_name ? m->local_name : m->name;
    uint32_t packed = (uint32_t)(m->packed ? m->packed : strlen(m->data));
    uint32_t crc =
        m->method || m->crc ? m->crc : (uint32_t)checksum_of(SUM_CRC32, m->data, packed);
    uint32_t size = m->method || m->size ? m->size : packed;
    size_t head = is_local ? 30 : 46, name_len = strlen(name),
           extra = is_local ? 0 : m->extra_len;
    uint8_t *fields = p + (is_local ? 4 : 6); /* those that both have */
    memset(p, 0, head);
    memcpy(p, is_local ? "PK\3\4" : "PK\1\2", 4);
    bytes_put_le16(fields + 2, is_local && m->local_flags ? m->local_flags : m->flags);
    bytes_put_le16(fields + 4,
                   is_local && m->local_method ? (uint16_t)(m->local_method - 1) : m->method);
    bytes_put_le16(fields + 8, m->date ? m->date : 0x5021);
    bytes_put_le32(fields + 10, is_local && m->local_crc ? m->local_crc : crc);
    bytes_put_le32(fields + 14, !is_local && m->entry_packed ? m->entry_packed : packed);
    size = is_local && m->local_size ? m->local_size : size;
    bytes_put_le32(fields + 18, !is_local && m->entry_size ? m->entry_size : size);
    bytes_put_le16(fields + 22, (uint16_t)name_len);
    bytes_put_le16(fields + 24, (uint16_t)extra);
    if (!is_local) {
        p[5] = m->host ? m->host : 3;
        bytes_put_le32(p + 38, m->host ? 0 : (m->mode ? m->mode : ZIP_FILE_MODE) << 16);
        bytes_put_le32(p + 42, m->same_as ? m->same_as->at : m->at);
    }
    memcpy(p + head, name, name_len);
    if (extra)
        memcpy(p + head + name_len, m->extra, extra);
    return p + head + name_len + extra;
}

/* A whole zip, whose offsets count from `base`. Returns its length. */
static inline size_t zip_put(uint8_t *to, struct zip_member *members, size_t count,
                             uint32_t base)
{
    uint8_t *p = to;
    for (size_t i = 0; i < count; i++) {
        struct zip_member *m = &members[i];
        size_t packed = m->packed ? m->packed : strlen(m->data);
        if (m->same_as)
            continue;
        m->at = (uint32_t)(p - to) + base;
        p = zip_put_header(p, m, true);
        memcpy(p, m->data, packed);
        p += packed;
    }
    const uint8_t *directory = p;
    for (size_t i = 0; i < count; i++)
        p = zip_put_header(p, &members[i], false);
    memset(p, 0, 22);
    memcpy(p, "PK\5\6", 4);
    bytes_put_le16(p + 8, (uint16_t)count);
    bytes_put_le16(p + 10, (uint16_t)count);
    bytes_put_le32(p + 12, (uint32_t)(p - directory));
    bytes_put_le32(p + 16, (uint32_t)(directory - to) + base);
    return (size_t)(p + 22 - to);
}

#endif
