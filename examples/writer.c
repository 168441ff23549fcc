/*
 * An archive of what a program has in memory, without a file for each sample:
 *
 *     cc writer.c $(pkg-config --cflags --libs onepot) -o writer
 *     ./writer squares.tar 1000      the squares of 0 to 999, in ten classes
 */
#include <stdio.h>
#include <stdlib.h>

#include <onepot.h>

static int add_square(struct onepot_writer *writer, unsigned long i, struct onepot_error *error)
{
    char name[64], text[64];
    snprintf(name, sizeof(name), "ends-on-%lu/%08lu.txt", i % 10, i);
    int len = snprintf(text, sizeof(text), "%lu\n", i * i);
    return onepot_writer_add(writer, name, text, (size_t)len, NULL, error);
}

int main(int argc, char **argv)
{
    struct onepot_writer *writer;
    struct onepot_error error;
    if (argc != 3) {
        fprintf(stderr, "Usage: writer ARCHIVE COUNT\n");
        return 2;
    }
    struct onepot_writer_options options = {.size = sizeof(options), .overwrite = true};
    int r = onepot_writer_new(argv[1], &options, &error, &writer);
    if (r == 0) {
        for (unsigned long i = 0; r == 0 && i < strtoul(argv[2], NULL, 10); i++)
            r = add_square(writer, i, &error);
        if (r == 0)
            r = onepot_writer_finish(writer, &error);
        else
            onepot_writer_discard(writer);
    }
    if (r < 0)
        fprintf(stderr, "writer: %s\n", error.text);
    return r < 0 ? 1 : 0;
}
