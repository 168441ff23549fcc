/*
 * The index image: what an archive, a saved index or the indexing child hands over. Sums
 * are set right first, as whoever makes a hostile image would.
 */
#include <stdlib.h>
#include <string.h>

#include "fuzz.h"
#include "index.h"

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
        index_close(index);
    }
    source_close(source);
    return 0;
}

uint8_t *fuzz_seed(unsigned number, size_t *ret_size)
{
    return number == 0 ? fuzz_make_image(ret_size) : NULL;
}
