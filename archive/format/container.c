/*
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
#include "container.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "backend.h"
#include "bytes.h"
#include "cleanup.h"
#include "numbers.h"
#include "sif.h"
#include "unknown_format.h"

#define SCRIPT_BYTES (1u << 20) /* of a script before its archive */
#define BEGIN_BYTES 4096u       /* enough to know a format or a container by */

bool front_next(const struct front *front, size_t *cursor, struct front_place *ret_place)
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
    *ret_place = (struct front_place){at, front->len - skipped, front->offset + skipped};
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
        unknown_format_is_tar(head, head_len) || backend_of_head(source, head, head_len))
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

int front_find(const struct front *front, const struct backend **ret_backend,
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

/*
 * 1: a tar's header lies right before `offset`, so that the archive there is a member. The
 * tar's own beginning is damaged then, and only its first member's name looks like a program's
 * magic.
 */
static int container_is_member(const struct source *source, uint64_t offset)
{
    uint8_t header[UNKNOWN_TAR_BYTES];
    if (offset < sizeof(header))
        return 0;
    int r = source_read(source, header, sizeof(header), offset - sizeof(header));
    return r < 0 ? r : unknown_format_is_tar_header(header);
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
