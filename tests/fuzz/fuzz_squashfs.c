/*
 * The SquashFS back end, in its sandbox, because libsquashfuse may crash on what is
 * hostile: that is an answer. What comes back from the child is an index as good as any.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "fuzz.h"

#include "../index_job.h"

static void open_and_walk(int fd, uint64_t bytes)
{
    struct source *source;
    struct index *index;
    struct fault fault = {0};
    if (source_from_fd(fd, "index", &source) < 0 ||
        index_open(source, 0, bytes, &fault, &index) < 0)
        abort();
    fuzz_walk(index);
    index_close(index);
    source_close(source);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static uint64_t *image_bytes;
    struct fault fault = {0};
    if (!image_bytes)
        image_bytes = mmap(NULL, sizeof(*image_bytes), PROT_READ | PROT_WRITE,
                           MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    struct source *source = fuzz_source(data, size);
    int fd = memfd_create("index", MFD_CLOEXEC);
    struct index_job job = {&backend_squashfs, FORMAT_SQUASHFS, source, fd, image_bytes};
    int keep[] = {source_fd(source), fd};
    struct sandbox_limits limits = {.keep_fds = keep, .keep_fd_count = 2, .stall_seconds = 10};
    if (backend_squashfs.probe(source, data, size) == 1) {
        int r = sandbox_run(index_in_child, &job, &limits, NULL, NULL, &fault);
        if (r < 0 && !fault.err && r != -ENOMEM)
            abort();
        if (r == 0)
            open_and_walk(dup(fd), *image_bytes);
    }
    close(fd);
    source_close(source);
    return 0;
}

uint8_t *fuzz_seed(unsigned number, size_t *ret_size)
{
    static const char *const options[] = {"-comp gzip", "-noI -noId -noD -noF -noX"};
    char folder[] = "/tmp/onepot-fuzz-XXXXXX", command[1024];
    if (number >= 2 || system("command -v mksquashfs >/dev/null") != 0 || !mkdtemp(folder))
        return NULL;
    snprintf(command, sizeof(command),
             "cd %s && mkdir -p t/d/e && echo hello >t/f && ln t/f t/d/l && ln -s f t/s && "
             "head -c 300000 /dev/zero >t/d/z && seq 30000 >t/d/n && mkfifo t/d/e/p && "
             "mksquashfs t i -quiet -no-progress -all-root %s >/dev/null 2>&1",
             folder, options[number]);
    uint8_t *seed = malloc(1u << 20);
    int r = system(command);
    snprintf(command, sizeof(command), "%s/i", folder);
    FILE *f = r == 0 ? fopen(command, "rb") : NULL;
    *ret_size = f && seed ? fread(seed, 1, 1u << 20, f) : 0;
    if (f)
        fclose(f);
    snprintf(command, sizeof(command), "rm -rf %s", folder);
    if (system(command) != 0 || !f || *ret_size == 0) {
        free(seed);
        return NULL;
    }
    return seed;
}
