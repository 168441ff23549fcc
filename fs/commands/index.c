/*
 * onepot index: make and save the index of a foreign archive ahead of time, so that the jobs
 * that mount it need not.
 */
#include <stdbool.h>
#include <string.h>

#include "cli.h"
#include "commands.h"

static int index_main(int argc, char **argv);

const struct cli_command command_index = {
    "index", index_main, "save the index of a foreign archive", "[-f] [--digest] ARCHIVE...",
    "Save the index of archives beside them (ARCHIVE.onepot-index), or where that is\n"
    "not possible, in $XDG_CACHE_HOME/onepot. An archive that 'onepot pack' made carries\n"
    "its own index and needs none.\n"};

static void command_index_report(const struct fileset *fileset)
{
    if (fileset->origin == FILESET_INDEX_EMBEDDED) {
        cli_note("%s: this archive carries its own index; there is nothing to save",
                 fileset->path);
        return;
    }
    const struct index_info *info = index_info(fileset->index);
    const char *where = fileset->index_path ? fileset->index_path : "(nowhere)";
    cli_print_safe(stdout, fileset->path, strlen(fileset->path));
    fputs(fileset->origin == FILESET_INDEX_SAVED ? ": still right: " : ": saved in ", stdout);
    cli_print_safe(stdout, where, strlen(where));
    printf(" (%s, %s entries)\n", cli_bytes(info->image_bytes), cli_count(info->entries));
}

/* Print the digest, and have the saved index name it. */
static int command_index_digest(struct fileset *fileset, const struct fileset_options *options)
{
    bool is_known = index_info(fileset->index)->digest_kind == DIGEST_TREE;
    char hex[2 * INDEX_DIGEST_BYTES + 1];
    struct fault fault = {0};
    int r = cli_digest(fileset, options, hex);
    if (r < 0)
        return CLI_FAILED;
    r = is_known ? 0 : fileset_save_digest(fileset, &fault);
    if (r < 0)
        cli_fail(fileset->path, r, &fault);
    cli_print_safe(stdout, fileset->path, strlen(fileset->path));
    printf(": digest %s\n", hex);
    return r < 0 ? CLI_FAILED : CLI_OK;
}

static int index_archives(char **archives, int count, bool rebuild, bool digest)
{
    int status = CLI_OK;
    struct fileset_options options = {.save = FILESET_SAVE_ALWAYS, .rebuild = rebuild};
    for (int i = 0; i < count; i++) {
        struct fileset *fileset;
        if (cli_open_fileset(archives[i], &options, &fileset) < 0) {
            status = CLI_FAILED;
            continue;
        }
        command_index_report(fileset);
        if (digest && command_index_digest(fileset, &options) != CLI_OK)
            status = CLI_FAILED;
        fileset_close(fileset);
    }
    return status;
}

static int index_main(int argc, char **argv)
{
    bool rebuild = false, digest = false;
    const struct cli_option options[] = {
        {"-f, --force", "make it anew, even where a saved one still fits", .flag = &rebuild},
        {"--digest", "also save the digest of the files, for which all of them are read once",
         .flag = &digest},
        CLI_ARCHIVES,
        {NULL},
    };
    int status = cli_parse(&command_index, options, argc, argv);
    if (status != CLI_GO_ON)
        return status;
    if (optind == argc)
        return cli_usage_error(&command_index, "no archive was named");
    return index_archives(argv + optind, argc - optind, rebuild, digest);
}
