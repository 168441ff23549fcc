/*
 * The words of a command that takes archives and paths in them.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "cli.h"

int cli_take_path(const struct cli_usage *usage, void *ctx, const char *text)
{
    (void)usage;
    struct cli_paths *words = ctx;
    words->paths[words->path_count++] = text;
    return 0;
}

int cli_count_behind_dashes(int argc, char **argv)
{
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], "--") == 0)
            return argc - i - 1;
    return -1;
}

int cli_parse_paths(const struct cli_usage *usage, const struct cli_option *options, int argc,
                    char **argv, struct cli_paths *words)
{
    int paths = cli_count_behind_dashes(argc, argv); /* getopt moves "--" */
    *words = (struct cli_paths){.guessed = paths < 0};
    words->paths = calloc((size_t)argc + 1, sizeof(*words->paths));
    words->found = calloc((size_t)argc + 1, sizeof(*words->found));
    if (!words->paths || !words->found)
        return cli_fail(NULL, -ENOMEM, NULL);
    int status = cli_parse(usage, options, argc, argv);
    if (status != CLI_GO_ON)
        return status;
    if (paths < 0) { /* they begin at the first argument, after an archive, that is no file */
        struct stat st;
        int first = optind + 1;
        while (first < argc && stat(argv[first], &st) == 0 && !S_ISDIR(st.st_mode))
            first++;
        paths = first < argc ? argc - first : 0;
    }
    words->option_count = words->path_count;
    if (argc - optind <= paths)
        return cli_usage_error(usage, "no archive was named");
    words->archives = argv + optind;
    words->archive_count = (size_t)(argc - optind - paths);
    for (int i = argc - paths; i < argc; i++)
        words->paths[words->path_count++] = argv[i];
    return CLI_GO_ON;
}

void cli_paths_free(struct cli_paths *words)
{
    free(words->paths);
    free(words->found);
}

int cli_paths_check(const struct cli_paths *words)
{
    size_t i = 0;
    while (i < words->path_count && words->found[i])
        i++;
    if (i == words->path_count)
        return CLI_OK;
    bool one = words->archive_count == 1;
    bool is_guess = words->guessed && i >= words->option_count;
    char name[CLI_NAME_LEN];
    return cli_failf(cli_name_of(words->archives, words->archive_count, name),
                     "%s: no such file or directory in the %s%s", words->paths[i],
                     one ? "archive" : "archives", is_guess ? ", and no archive here" : "");
}
