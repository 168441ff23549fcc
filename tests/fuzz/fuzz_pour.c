/*
 * Streams and containers that become an archive: whatever the input is, the archive that was
 * made of it is whole, and an error comes with a fault.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include <zstd.h>

#include "backend.h"
#include "fuzz.h"
#include "output.h"
#include "pour_private.h"

/* The archive that was made has an index, which describes it. */
static void check_archive(int fd)
{
    struct embedded_index where;
    struct source *source;
    struct index *index;
    struct fault fault = {0};
    int own = dup(fd);
    require(own >= 0 && source_from_fd(own, "made", &source) == 0);
    require(backend_onepot.trailer->find(source, &fault, &where) == 0);
    require(index_open(source, where.offset, where.length, &fault, &index) == 0);
    fuzz_walk(index);
    index_close(index);
    source_close(source);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct progress progress = {0};
    struct fault fault = {0};
    struct output *output;
    char path[64];
    int in = memfd_create("fuzz", MFD_CLOEXEC);
    int report = memfd_create("report", MFD_CLOEXEC);
    require(in >= 0 && report >= 0 && pwrite(in, data, size, 0) == (ssize_t)size &&
            ftruncate(report, sizeof(struct pour_report)) == 0);
    snprintf(path, sizeof(path), "/tmp/onepot-fuzz-%d.tar", (int)getpid());
    const char *const name = "fuzz";
    const struct pack_options options = {.sources = &name, .source_count = 1, .output = path};
    struct pour p = {.options = &options,
                     .fd = in,
                     .is_file = size % 2 == 0,
                     .progress = &progress,
                     .fault = &fault,
                     .report_fd = report};
    require(output_open(path, OUTPUT_NEW, 0, &fault, &output) == 0);
    require(writer_new(output, &options.writer, &p.writer) == 0);
    int r = pour_read(&p);
    struct writer *writer = p.writer;
    p.writer = NULL;
    if (r < 0) {
        require(r == -ENOMEM || (fault.err && fault.what[0])); /* the sandbox tells of memory */
        writer_discard(writer);
    } else {
        struct writer_totals totals;
        require(writer_finish(writer, &fault, &totals) == 0);
        check_archive(output->fd);
    }
    output_discard(output);
    pour_free(&p);
    close(in);
    close(report);
    return 0;
}

uint8_t *fuzz_seed(unsigned number, size_t *ret_size)
{
    static const char *const formats[] = {"pax", "gnutar", "newc", "cpio", "7zip", "iso9660"};
    const unsigned count = sizeof(formats) / sizeof(*formats);
    uint8_t *made = number <= count ? fuzz_make_tar(formats[number % count], ret_size) : NULL;
    if (number < count || !made)
        return made;
    size_t most = ZSTD_compressBound(*ret_size);
    uint8_t *packed = malloc(most);
    require(packed);
    *ret_size = ZSTD_compress(packed, most, made, *ret_size, 1);
    free(made);
    return packed;
}
