/*
 * onepot info: what kind of archive it is, and what is in it. All of it comes from the
 * header of the index; no member is touched.
 */
#include <inttypes.h>
#include <string.h>

#include "cli.h"
#include "codec.h"
#include "commands.h"

static const struct cli_usage usage = {
    "info", "[--json] ARCHIVE...",
    "Print format, members, bytes, compression, index and checksums of archives.\n"
    "\n"
    "      --json            one array of objects\n"
    "      --progress=WHEN   show progress: auto, always or never\n"};

static const char *origin_name(enum pot_index_origin origin)
{
    switch (origin) {
    case POT_INDEX_EMBEDDED:
        return "embedded";
    case POT_INDEX_SAVED:
        return "saved";
    default:
        return "built";
    }
}

/* ---- for people ---- */

static void print_size(const char *label, uint64_t bytes)
{
    char text[CLI_TEXT_LEN], count[CLI_TEXT_LEN];
    printf("  %-12s %s", label, cli_format_bytes(bytes, text));
    if (bytes >= 1024)
        printf(" (%s bytes)", cli_format_count(bytes, count));
    putchar('\n');
}

static void print_members(const struct index_info *info)
{
    uint64_t known = info->files + info->directories;
    uint64_t others = info->entries > known ? info->entries - known : 0;
    const struct {
        uint64_t count;
        const char *one, *many;
    } kinds[] = {{info->files, "file", "files"},
                 {info->directories, "directory", "directories"},
                 {others, "other", "others"}};
    printf("  %-12s ", "members");
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        char count[CLI_TEXT_LEN];
        printf("%s%s %s", i ? ", " : "", cli_format_count(kinds[i].count, count),
               kinds[i].count == 1 ? kinds[i].one : kinds[i].many);
    }
    putchar('\n');
}

static void print_compression(const struct pot *pot, const struct index_info *info)
{
    char block[CLI_TEXT_LEN];
    if (pot->compression)
        printf("  %-12s %s, of the whole archive\n", "compression", pot->compression);
    else if (info->codec == CODEC_NONE)
        printf("  %-12s none\n", "compression");
    else
        printf("  %-12s %s, in blocks of at most %s\n", "compression", codec_name(info->codec),
               cli_format_bytes(info->block_bytes, block));
}

static void print_index(const struct pot *pot, const struct index_info *info)
{
    char bytes[CLI_TEXT_LEN];
    printf("  %-12s %s, ", "index", cli_format_bytes(info->image_bytes, bytes));
    if (pot->origin == POT_INDEX_EMBEDDED)
        fputs("in the archive", stdout);
    else if (pot->origin == POT_INDEX_SAVED)
        fputs("saved", stdout);
    else
        fputs("made just now", stdout);
    if (pot->index_path) {
        fputs(pot->origin == POT_INDEX_BUILT ? " and saved in " : " in ", stdout);
        cli_print_name(stdout, pot->index_path, strlen(pot->index_path));
    }
    putchar('\n');
}

static void print_features(const struct index_info *info)
{
    const char *const names[] = {info->has_hardlinks ? "hard links" : NULL,
                                 info->has_holes ? "holes" : NULL,
                                 info->has_xattrs ? "extended attributes" : NULL};
    const char *separator = "";
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (!names[i])
            continue;
        if (!*separator)
            printf("  %-12s ", "also has");
        printf("%s%s", separator, names[i]);
        separator = ", ";
    }
    if (*separator)
        putchar('\n');
}

static void print_text(const struct pot *pot, const struct index_info *info)
{
    cli_print_name(stdout, pot->path, strlen(pot->path));
    fputs(":\n", stdout);
    printf("  %-12s %s\n", "format", pot->backend->name);
    print_size("size", pot->identity.size_bytes);
    print_members(info);
    print_size("contents", info->total_bytes);
    print_compression(pot, info);
    print_index(pot, info);
    printf("  %-12s %s\n", "checksums", info->has_sums ? "of every file (XXH3-64)" : "none");
    print_features(info);
}

/* ---- for programs ---- */

static void print_json(const struct pot *pot, const struct index_info *info)
{
    uint64_t known = info->files + info->directories;
    fputs("{\n  \"archive\": ", stdout);
    cli_json_string(stdout, pot->path, strlen(pot->path));
    cli_json_text("format", pot->backend->name, SIZE_MAX);
    cli_json_number("size_bytes", pot->identity.size_bytes);
    cli_json_text("compression", pot->compression, SIZE_MAX);
    cli_json_text("codec", codec_name(info->codec), SIZE_MAX);
    cli_json_number("block_bytes", info->block_bytes);
    cli_json_number("entries", info->entries);
    cli_json_number("files", info->files);
    cli_json_number("directories", info->directories);
    cli_json_number("others", info->entries > known ? info->entries - known : 0);
    cli_json_number("inodes", info->inodes);
    cli_json_number("total_bytes", info->total_bytes);
    cli_json_number("data_bytes", info->data_bytes);
    cli_json_text("index_origin", origin_name(pot->origin), SIZE_MAX);
    cli_json_text("index_path", pot->index_path, SIZE_MAX);
    cli_json_number("index_bytes", info->image_bytes);
    cli_json_bool("has_sums", info->has_sums);
    cli_json_bool("has_hardlinks", info->has_hardlinks);
    cli_json_bool("has_holes", info->has_holes);
    cli_json_bool("has_xattrs", info->has_xattrs);
    fputs("\n}", stdout);
}

static int show_archives(char **archives, int count, bool json, enum cli_progress_mode progress)
{
    int status = CLI_OK;
    const char *separator = "";
    if (json)
        fputs("[", stdout);
    for (int i = 0; i < count; i++) {
        struct pot *pot;
        if (cli_open_pot(archives[i], NULL, progress, &pot) < 0) {
            status = CLI_FAILED;
            continue;
        }
        fputs(separator, stdout);
        if (json)
            print_json(pot, index_info(pot->index));
        else
            print_text(pot, index_info(pot->index));
        separator = json ? ",\n" : "\n";
        pot_close(pot);
    }
    if (json)
        fputs("]\n", stdout);
    return status;
}

enum { OPTION_JSON = CLI_OPTION_OWN, OPTION_PROGRESS };

int command_info(int argc, char **argv)
{
    static const struct option longs[] = {
        {"json", no_argument, NULL, OPTION_JSON},
        {"progress", required_argument, NULL, OPTION_PROGRESS},
        CLI_OPTIONS_END,
    };
    bool json = false;
    enum cli_progress_mode progress = CLI_PROGRESS_AUTO;
    int opt, status = CLI_GO_ON;
    while ((opt = cli_getopt(&usage, argc, argv, "", longs, &status)) != -1) {
        if (opt == OPTION_JSON)
            json = true;
        else if (opt == OPTION_PROGRESS && cli_progress_option(&usage, optarg, &progress) != 0)
            return CLI_USAGE;
    }
    if (status != CLI_GO_ON)
        return status;
    if (optind == argc)
        return cli_usage_error(&usage, "no archive was named");
    return show_archives(argv + optind, argc - optind, json, progress);
}
