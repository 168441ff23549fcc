/*
 * The zip back end, in this process, so that libFuzzer sees which way it went.
 */
#include <archive.h>
#include <archive_entry.h>
#include <stdlib.h>
#include <string.h>

#include "backend.h"
#include "fuzz.h"
#include "zip_helper.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_index(&backend_zip, data, size);
    return 0;
}

static void add_member(struct archive *a, const char *path, unsigned type, size_t size)
{
    static const char text[8000] = "what is in it";
    struct archive_entry *entry = archive_entry_new();
    archive_entry_set_pathname(entry, path);
    archive_entry_set_filetype(entry, type);
    archive_entry_set_perm(entry, 0644);
    archive_entry_set_mtime(entry, 1234567890, 0);
    archive_entry_set_size(entry, (la_int64_t)size);
    if (type == AE_IFLNK)
        archive_entry_set_symlink(entry, "file");
    if (archive_write_header(a, entry) != ARCHIVE_OK ||
        (size && archive_write_data(a, text, size) != (la_ssize_t)size))
        abort();
    archive_entry_free(entry);
}

/* Headers that differ from the directory, a member listed twice, links, fields. */
static uint8_t *make_odd(size_t *ret_size)
{
    static const char deflated[] = "\x4b\x4c\x84\0"; /* of aaaaaaaa */
    static const char time[] = "UT\5\0\1\0\xca\x9a\xf4";
    struct zip_member members[] = {
        {.name = "d\\name", .data = "1", .local_name = "d/name", .host = 10},
        {.name = "size", .data = "22", .local_size = 5},
        {.name = "method", .data = "333", .local_method = 9},
        {.name = "packed",
         .data = deflated,
         .packed = 5,
         .method = 8,
         .size = 8,
         .crc = 0xbf848046,
         .local_crc = 1,
         .extra = time,
         .extra_len = 9},
        {.name = "link",
         .data = deflated,
         .packed = 5,
         .method = 8,
         .size = 8,
         .crc = 0xbf848046,
         .mode = 0120777},
        {.name = "size", .data = "22", .same_as = &members[1]},
    };
    uint8_t *seed = malloc(4000);
    if (seed)
        *ret_size = zip_put(seed, members, 6, 0);
    return seed;
}

uint8_t *fuzz_seed(unsigned number, size_t *ret_size)
{
    if (number == 3)
        return make_odd(ret_size);

    static const char *const options[] = {"zip:compression=store", "zip:compression=deflate",
                                          "zip:compression=deflate,zip:zip64"};
    size_t room = 1u << 16, used = 0;
    uint8_t *seed = number < 3 ? malloc(room) : NULL;
    if (!seed)
        return NULL;
    struct archive *a = archive_write_new();
    archive_write_set_format_zip(a);
    if (archive_write_set_options(a, options[number]) != ARCHIVE_OK ||
        archive_write_open_memory(a, seed, room, &used) != ARCHIVE_OK)
        abort();
    add_member(a, "file", AE_IFREG, 3000);
    add_member(a, "d/", AE_IFDIR, 0);
    add_member(a, "d/empty", AE_IFREG, 0);
    add_member(a, "d/link", AE_IFLNK, 0);
    add_member(a, "d/other", AE_IFREG, 8000);
    archive_write_close(a);
    archive_write_free(a);
    *ret_size = used;
    return seed;
}
