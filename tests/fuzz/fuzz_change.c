/*
 * An index whose owner changes it while it is used. The input is two lists of edits of the
 * records of an index: the first ones are made before it is opened, the others in its file once
 * it is open, with all sums set right each time. What the index says may not change by the
 * others, and reader, verify, extract and loader have to bear what it says.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <xxhash.h>

#include "content.h"
#include "dataset.h"
#include "extract.h"
#include "fuzz.h"
#include "index.h"
#include "index_format.h"
#include "remove_tree.h"
#include "verify.h"

#define DATA_BYTES 100000u /* of the archive, before its index: as fuzz_make_image has it */
#define EDIT_BYTES 8u
#define EXTENTS_MAX 64
#define PIECE_BYTES 65536u

/* ---- edits ---- */

/* The records that an edit is of: those of a section, or the header as one. */
struct table {
    uint64_t offset, records, record_bytes;
};

static struct table choose_table(const uint8_t *image, size_t size, uint8_t choice)
{
    struct disk_header h;
    struct disk_section s;
    memcpy(&h, image, sizeof(h));
    uint32_t number = choice % (h.sections + 1);
    if (number == h.sections)
        return (struct table){32, 1, sizeof(h) - 32};
    memcpy(&s, image + h.sections_offset + number * sizeof(s), sizeof(s));
    require(s.offset <= size && s.length <= size - s.offset);
    return (struct table){s.offset, s.length / s.record_bytes, s.record_bytes};
}

/* Table, how, record, byte of the record, and three bytes of a number. */
static void edit(uint8_t *image, size_t size, const struct table *t,
                 const uint8_t bytes[EDIT_BYTES])
{
    if (t->records == 0)
        return;
    uint64_t record = (uint64_t)(bytes[2] | bytes[3] << 8) % t->records;
    uint64_t at = t->offset + record * t->record_bytes + bytes[4] % t->record_bytes;
    uint64_t number = (uint64_t)(bytes[5] | bytes[6] << 8 | bytes[7] << 16), old = 0;
    size_t width = (size_t)1 << bytes[1] % 4;
    if (width > size - at)
        width = size - at;
    memcpy(&old, image + at, width);
    switch (bytes[1] / 4 % 5) {
    case 0:
        old = number;
        break;
    case 1:
        old += number;
        break;
    case 2:
        old -= number;
        break;
    case 3:
        old ^= UINT64_C(1) << number % 64;
        break;
    default:
        memcpy(&old, image + t->offset + number % t->records * t->record_bytes,
               width < t->record_bytes ? width : t->record_bytes);
    }
    memcpy(image + at, &old, width);
}

/* Where things lie is read from the image as it was made, not as it was edited. */
static void edit_all(uint8_t *image, const uint8_t *made, size_t size, const uint8_t *edits,
                     size_t len)
{
    for (; len >= EDIT_BYTES; edits += EDIT_BYTES, len -= EDIT_BYTES) {
        struct table t = choose_table(made, size, edits[0]);
        edit(image, size, &t, edits);
    }
    fuzz_resum(image, size);
}

/* ---- what it says ---- */

static void add(XXH3_state_t *state, int r, const void *bytes, size_t len)
{
    XXH3_64bits_update(state, &r, sizeof(r));
    if (r == 0)
        XXH3_64bits_update(state, bytes, len);
}

static void add_extents(XXH3_state_t *state, const struct index *index, uint32_t position,
                        uint64_t size)
{
    uint64_t at = 0;
    for (int i = 0; i < EXTENTS_MAX && at < size; i++) {
        struct extent e;
        memset(&e, 0, sizeof(e));
        int r = index_extent(index, position, at, &e);
        uint64_t facts[] = {e.kind,         e.offset,      e.length,      e.source_offset,
                            e.packed_bytes, e.block_bytes, e.block_offset};
        add(state, r, facts, sizeof(facts));
        if (r < 0)
            return;
        at += e.length;
    }
}

static uint64_t digest_of(const struct index *index)
{
    XXH3_state_t *state = XXH3_createState();
    require(state);
    XXH3_64bits_reset(state);
    for (uint32_t i = 0; i < index_info(index)->entries; i++) {
        struct node n;
        const char *text = "";
        size_t len = 0;
        uint32_t family[3] = {0};
        memset(&n, 0, sizeof(n));
        int r = index_name(index, i, &text, &len);
        add(state, r, text, len);
        r = index_parent(index, i, &family[0]);
        add(state, r, family, sizeof(family));
        r = index_children(index, i, &family[1], &family[2]);
        add(state, r, family, sizeof(family));
        r = index_symlink(index, i, &text, &len);
        add(state, r, text, len);
        r = index_node(index, i, &n);
        uint64_t facts[] = {
            n.position,           n.mode,       n.uid,        n.gid,        n.nlink,
            n.mtime_nsec,         n.size_bytes, n.data_bytes, n.has_xattrs, n.has_holes,
            (uint64_t)n.mtime_sec};
        add(state, r, facts, sizeof(facts));
        if (r == 0 && S_ISREG(n.mode))
            add_extents(state, index, i, n.size_bytes);
    }
    uint64_t digest = XXH3_64bits_digest(state);
    XXH3_freeState(state);
    return digest;
}

/* ---- who uses it ---- */

static void read_files(struct fileset *fileset, struct reader *reader)
{
    static uint8_t buf[PIECE_BYTES];
    struct reader_scratch *scratch;
    require(reader_scratch_new(reader, &scratch) == 0);
    for (uint32_t i = 0; i < index_info(fileset->index)->entries; i++) {
        struct node n;
        size_t got;
        if (index_node(fileset->index, i, &n) < 0 || !S_ISREG(n.mode))
            continue;
        reader_copy(reader, scratch, i, 0, buf, sizeof(buf), &got);
        reader_copy(reader, scratch, i, n.size_bytes / 2, buf, sizeof(buf), &got);
    }
    reader_scratch_free(scratch);
}

/* Into FOLDER/out: nothing else may come to lie in FOLDER. */
static void extract(struct fileset *fileset)
{
    char folder[] = "/tmp/onepot-fuzz.XXXXXX", out[sizeof(folder) + 4];
    struct extract_result result;
    require(mkdtemp(folder));
    snprintf(out, sizeof(out), "%s/out", folder);
    struct extract_options options = {.work = {.threads = 1}, .directory = out};
    extract_run(fileset, &options, NULL, &result);
    DIR *dir = opendir(folder);
    require(dir);
    for (const struct dirent *e; (e = readdir(dir));)
        require(e->d_name[0] == '.' || strcmp(e->d_name, "out") == 0);
    closedir(dir);
    remove_tree(AT_FDCWD, folder,
                UINT64_MAX); /* whose directories the archive may have closed to us */
    require(access(folder, F_OK) < 0);
}

/* Takes the fileset over. */
static void load(struct fileset *fileset)
{
    static uint8_t buf[PIECE_BYTES];
    struct onepot_archive_options options = {.cache_bytes = 1u << 20};
    struct dataset *dataset;
    struct cursor *cursor;
    struct fileset **filesets = malloc(sizeof(*filesets));
    require(filesets);
    filesets[0] = fileset;
    if (dataset_new(filesets, 1, &options, NULL, &dataset) < 0)
        return;
    require(dataset->record_count <= index_info(fileset->index)->entries);
    if (cursor_get(dataset, NULL, &cursor) == 0) {
        for (uint64_t i = 0; i < dataset->record_count; i++) {
            const struct record *r = &dataset->records[i];
            cursor_read(dataset, cursor, r, 0, buf,
                        r->size_bytes < sizeof(buf) ? (size_t)r->size_bytes : sizeof(buf));
        }
        cursor_put(cursor);
    }
    dataset_free(dataset);
}

/* As fileset_open leaves it. NULL: the index is refused. */
static struct fileset *open_fileset(int fd, size_t size)
{
    struct fileset *fileset = calloc(1, sizeof(*fileset));
    require(fileset && (fileset->path = strdup("archive")));
    fileset->backend = &backend_squashfs;
    require(source_from_fd(dup(fd), "archive", &fileset->source) == 0);
    if (index_open(fileset->source, DATA_BYTES, size, NULL, &fileset->index) == 0 &&
        index_info(fileset->index)->archive_bytes <= source_size(fileset->source))
        return fileset;
    fileset_close(fileset);
    return NULL;
}

static void use(struct fileset *fileset)
{
    struct reader_options options = {.cache_bytes = 1u << 20};
    struct work_options how = {.threads = 1};
    struct verify_result result;
    struct reader *reader;
    if (reader_new(fileset, &options, NULL, &reader) == 0) {
        read_files(fileset, reader);
        reader_free(reader);
        verify_run(fileset, &how, false, NULL, &result);
        extract(fileset);
    }
    load(fileset);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static uint8_t *made, *image;
    static size_t len;
    if (!made) {
        made = fuzz_make_image(&len);
        image = malloc(len);
        require(image);
    }
    size_t edits = size / EDIT_BYTES, first = size > 0 ? data[0] % (edits + 1) : 0;
    int fd = memfd_create("archive", MFD_CLOEXEC);
    require(fd >= 0 && fchmod(fd, 0666) == 0); /* others may write to it */
    memcpy(image, made, len);
    edit_all(image, made, len, data, first * EDIT_BYTES);
    require(ftruncate(fd, DATA_BYTES) == 0 &&
            pwrite(fd, image, len, DATA_BYTES) == (ssize_t)len);
    struct fileset *before = open_fileset(fd, len), *fileset = open_fileset(fd, len);
    if (fileset) {
        uint64_t digest = digest_of(before->index);
        edit_all(image, made, len, data + first * EDIT_BYTES, size - first * EDIT_BYTES);
        require(pwrite(fd, image, len, DATA_BYTES) == (ssize_t)len);
        require(digest_of(before->index) == digest);
        require(digest_of(fileset->index) == digest);
        use(fileset);
    }
    fileset_close(before);
    close(fd);
    return 0;
}

/* Edits of each table in turn, as numbers happen to be. */
uint8_t *fuzz_seed(unsigned number, size_t *ret_size)
{
    uint8_t *seed = number < 8 ? malloc(16 * EDIT_BYTES) : NULL;
    for (unsigned i = 0; seed && i < 16 * EDIT_BYTES; i++)
        seed[i] = (uint8_t)(XXH3_64bits_withSeed(&i, sizeof(i), number) >> 8);
    for (unsigned i = 0; seed && i < 16; i++)
        seed[i * EDIT_BYTES] = (uint8_t)(number + i);
    *ret_size = 16 * EDIT_BYTES;
    return seed;
}
