/*
 * What a person or a job script types: sizes, numbers, the options of mount, names that
 * are shown. The bytes are lines, each an argument.
 */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "fuzz.h"
#include "json.h"
#include "mount_options.h"
#include "numbers.h"
#include "utf8.h"
#include "vector.h"

#define ARGUMENTS_MAX 32

static void parse_options(char **argv, int argc)
{
    static const struct cli_command command = {.name = "mount", .synopsis = "", .text = ""};
    struct mount_options options;
    optind = 0; /* of glibc: from the start */
    if (mount_options_parse(&command, argc % 2, argc, argv, &options) == CLI_GO_ON)
        mount_options_hash(&options, "/at", 1, 2, 3);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static FILE *null;
    static VECTOR(char *) texts; /* options that gather keep what they are given: cli_view.c */
    char name[] = "mount", *argv[ARGUMENTS_MAX + 2] = {name};
    int argc = 1;
    uint64_t number;

    if (!null) { /* the messages are not what is looked at */
        null = fopen("/dev/null", "w");
        stdout = stderr = null;
    }
    char *text = malloc(size + 1), *rest = text;
    if (!text || vector_push(&texts, text) < 0)
        abort();
    memcpy(text, data, size);
    text[size] = '\0';
    cli_print_safe(null, text, size);
    json_string(null, text, size);
    for (char *line; argc <= ARGUMENTS_MAX && (line = strsep(&rest, "\n"));) {
        size_parse(line, &number);
        cli_parse_number(line, 1, 100, &number);
        argv[argc++] = line;
    }
    parse_options(argv, argc);
    return 0;
}

uint8_t *fuzz_seed(unsigned number, size_t *ret_size)
{
    static const char *const seeds[] = {
        "--at\n/mnt\n--cache\n4GiB\n--threads=3\na.tar",
        "-o\nfsname=x,noexec,nonempty,allow_other\n--idle\n5\n--uid\n77\n--\na.tar\n--\ncmd",
        "18446744073709551615K\n-1\n0x10\n4 K\n1e3\n\xff\xc3\xa4\xe2\x80\xae",
        "--owner\n1\n--io-timeout=0\n--subdir\n../x\n--progress=never\n-f\na",
    };
    if (number >= sizeof(seeds) / sizeof(seeds[0]))
        return NULL;
    *ret_size = strlen(seeds[number]);
    return (uint8_t *)strdup(seeds[number]);
}
