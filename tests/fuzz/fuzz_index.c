/*
 * The index image: what an archive, a saved index or the indexing child hands over. Sums
 * are set right first, as whoever makes a hostile image would. A tree is composed of it, too,
 * which is a good index and not much longer, or fails.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "fuzz.h"
#include "index.h"
#include "tree.h"

/* All of the index, and one of its entries under another name, too. */
static void compose(const struct index *index, size_t size)
{
    struct builder_header header = {.format = 1, .archive_bytes = UINT64_C(1) << 40};
    const struct tree_part part = {.index = index, .base = 1u << 20, .at_root = true};
    struct tree_place entry = {.position = index_info(index)->entries / 2};
    struct fault fault = {0};
    struct index *new;
    struct source *source;
    struct tree *tree;
    int fd = memfd_create("tree", MFD_CLOEXEC);
    require(fd >= 0);
    require(tree_new(&tree) == 0 && tree_add(tree, &part, &entry.part) == 0);
    require(tree_put(tree, TREE_TOP, "x", 1, entry, 0, &fault) == 0);
    int r = tree_write(tree, &header, fd, &fault);
    require(r == 0 || fault.what[0]);
    tree_free(tree);
    require(source_from_fd(fd, "tree", &source) == 0);
    if (r == 0) {
        require(index_open(source, 0, source_size(source), &fault, &new) == 0);
        require(index_info(new)->image_bytes < 10 * size + (1u << 17));
        fuzz_walk(new);
        index_close(new);
    }
    source_close(source);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct index *index;
    struct fault fault = {0};
    uint8_t *image = malloc(size ? size : 1);
    if (!image)
        abort();
    memcpy(image, data, size);
    fuzz_resum(image, size);
    struct source *source = fuzz_source(image, size);
    free(image);
    if (index_open(source, 0, size, &fault, &index) == 0) {
        fuzz_walk(index);
        compose(index, size);
        index_close(index);
    }
    source_close(source);
    return 0;
}

uint8_t *fuzz_seed(unsigned number, size_t *ret_size)
{
    return number == 0 ? fuzz_make_image(ret_size) : NULL;
}
