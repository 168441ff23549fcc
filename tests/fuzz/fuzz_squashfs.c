/*
 * The SquashFS back end, in this process, so that libFuzzer sees which way it went. What
 * libsquashfuse does not check it may trip over: in earnest it runs in the sandbox, where a
 * crash is an answer, but what can be checked before it is called has to be.
 */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "backend.h"
#include "fuzz.h"

/* It forgets a table when the next one is damaged; the child in which that happens ends at
 * once. */
const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void)
{
    return "leak:sqfs_table_init";
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_index(&backend_squashfs, data, size);
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
             "head -c 30000 /dev/zero >t/d/z && seq 3000 >t/d/n && mkfifo t/d/e/p && "
             "mksquashfs t i -b 4096 -nopad -quiet -no-progress -all-root %s >/dev/null 2>&1",
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
