/*
 * onepot info: an archive's format and contents. All of it comes from the index; no member is
 * touched.
 */
#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <unistd.h>

#include "batch_fit.h"
#include "checksum.h"
#include "cli.h"
#include "codec.h"
#include "commands.h"
#include "onepot_device.h"
#include "survey.h"

static const struct cli_usage usage = {
    "info", "[--json] [--gpu] [--batch-for SIZE] ARCHIVE...",
    "Print format, members, bytes, sizes of files, compression, index, checksums and\n"
    "digest of archives.\n"
    "\n"
    "      --batch-for=SIZE  how many samples a batch of so many bytes has room for\n"
    "      --gpu             GPUs and their free memory, and the batch that it has room for\n"
    "      --json            one array of objects\n"
    "      --progress=WHEN   show progress: auto, always or never\n" CLI_ARCHIVE_OPTIONS_HELP};

/* How many files fit into a batch of `bytes`. */
struct batch {
    uint64_t bytes; /* 0: not requested */
    uint64_t mean, worst;
};

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

static void print_members(const struct survey *survey)
{
    const struct {
        uint64_t count;
        const char *one, *many;
    } kinds[] = {{survey->files, "file", "files"},
                 {survey->directories, "directory", "directories"},
                 {survey->symlinks, "symbolic link", "symbolic links"},
                 {survey->hardlinks, "further name", "further names (hard links)"},
                 {survey->specials, "special file", "special files"}};
    printf("  %-12s ", "members");
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        char count[CLI_TEXT_LEN];
        if (i < 2 || kinds[i].count)
            printf("%s%s %s", i ? ", " : "", cli_format_count(kinds[i].count, count),
                   kinds[i].count == 1 ? kinds[i].one : kinds[i].many);
    }
    putchar('\n');
}

/* The archive's size compared with that of its contents. */
static void print_ratio(const struct pot *pot, const struct index_info *info)
{
    double packed = (double)pot->identity.size_bytes, data = (double)info->data_bytes;
    if (data == 0)
        return;
    printf("  %-12s the archive has %.1f %% of the bytes in it", "ratio",
           100.0 * packed / data);
    if (packed < data)
        printf(" (%.2f : 1)", data / packed);
    putchar('\n');
}

/* "1 KiB": a power of two, whole. */
static const char *class_text(unsigned size_class, char text[CLI_TEXT_LEN])
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    unsigned power = size_class - 1;
    snprintf(text, CLI_TEXT_LEN, "%u %s", 1u << power % 10, units[power / 10]);
    return text;
}

#define BAR_COLUMNS 40

static void print_bar(uint64_t count, uint64_t most)
{
    unsigned columns = (unsigned)((double)count / (double)most * BAR_COLUMNS + 0.5);
    for (unsigned i = 0; i < (columns ? columns : 1); i++)
        putchar('#');
}

/* Files by size: a line for each power of two between the smallest and the largest. */
static void print_histogram(const struct survey *survey)
{
    unsigned first = survey_class(survey->smallest_bytes);
    unsigned last = survey_class(survey->largest_bytes);
    uint64_t most = 1;
    for (unsigned i = first; i <= last; i++)
        if (survey->size_files[i] > most)
            most = survey->size_files[i];
    for (unsigned i = first; survey->files && i <= last; i++) {
        char text[CLI_TEXT_LEN], count[CLI_TEXT_LEN];
        printf("  %-12s %8s %-4s %13s ", i == first ? "file sizes" : "",
               i ? class_text(i, text) : "empty", i ? "or >" : "",
               cli_format_count(survey->size_files[i], count));
        if (survey->size_files[i])
            print_bar(survey->size_files[i], most);
        putchar('\n');
    }
}

static void print_sizes(const struct survey *survey)
{
    char small[CLI_TEXT_LEN], large[CLI_TEXT_LEN], mean[CLI_TEXT_LEN];
    uint64_t bytes = 0;
    if (!survey->files)
        return;
    for (unsigned i = 0; i < SURVEY_CLASSES; i++)
        bytes += survey->size_bytes[i];
    printf("  %-12s %s to %s, %s on average\n", "of a file",
           cli_format_bytes(survey->smallest_bytes, small),
           cli_format_bytes(survey->largest_bytes, large),
           cli_format_bytes(bytes / survey->files, mean));
    if (isatty(STDOUT_FILENO))
        print_histogram(survey);
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

static void print_left_out(const struct pot *pot)
{
    char count[CLI_TEXT_LEN];
    uint64_t left_out = index_left_out(pot->index);
    if (left_out)
        printf("  %-12s %s that can't be shown; 'onepot verify' lists them\n", "left out",
               cli_format_count(left_out, count));
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
    printf(", %.1f bytes for each member", (double)info->image_bytes / info->entries);
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

static void format_digest(const struct index_info *info, char text[2 * INDEX_DIGEST_BYTES + 1])
{
    for (size_t i = 0; i < INDEX_DIGEST_BYTES; i++)
        snprintf(text + 2 * i, 3, "%02x", info->digest[i]);
}

/* The archive's maker and content digest, if it records them. */
static void print_origin(const struct pot *pot, const struct index_info *info)
{
    char digest[2 * INDEX_DIGEST_BYTES + 1];
    if (info->digest_kind != DIGEST_NONE) {
        format_digest(info, digest);
        printf("  %-12s %s (%s)\n", "digest", digest,
               info->digest_kind == DIGEST_CONTENT ? "of names and contents"
                                                   : "of names and sizes");
    }
    if (pot->origin == POT_INDEX_EMBEDDED && info->made_by[0]) {
        printf("  %-12s ", "made by");
        cli_print_safe(stdout, info->made_by, strnlen(info->made_by, sizeof(info->made_by)));
        putchar('\n');
    }
}

static void print_batch(const struct batch *batch)
{
    char bytes[CLI_TEXT_LEN], mean[CLI_TEXT_LEN], worst[CLI_TEXT_LEN];
    printf("  %-12s %s hold %s files on average, %s of the largest\n", "batch",
           cli_format_bytes(batch->bytes, bytes), cli_format_count(batch->mean, mean),
           cli_format_count(batch->worst, worst));
}

static void print_text(const struct pot *pot, const struct index_info *info,
                       const struct survey *survey, const struct batch *batch)
{
    cli_print_name(stdout, pot->path, strlen(pot->path));
    fputs(":\n", stdout);
    printf("  %-12s %s\n", "format", pot->backend->name);
    print_size("size", pot->identity.size_bytes);
    print_members(survey);
    print_left_out(pot);
    print_size("contents", info->total_bytes);
    print_ratio(pot, info);
    print_sizes(survey);
    if (batch->bytes)
        print_batch(batch);
    print_compression(pot, info);
    print_index(pot, info);
    if (info->has_sums)
        printf("  %-12s of every file (%s)\n", "checksums", checksum_name(info->sum_kind));
    else
        printf("  %-12s none\n", "checksums");
    print_features(info);
    print_origin(pot, info);
}

/* ---- for programs ---- */

/* An array with one object for each size class that has files. */
static void print_json_sizes(const struct survey *survey)
{
    const char *separator = "";
    fputs(",\n  \"sizes\": [", stdout);
    for (unsigned i = 0; i < SURVEY_CLASSES; i++) {
        if (!survey->size_files[i])
            continue;
        printf("%s{\"from_bytes\": %" PRIu64 ", \"files\": %" PRIu64 ", \"bytes\": %" PRIu64
               "}",
               separator, i ? UINT64_C(1) << (i - 1) : 0, survey->size_files[i],
               survey->size_bytes[i]);
        separator = ", ";
    }
    fputs("]", stdout);
}

static void print_json_origin(const struct pot *pot, const struct index_info *info)
{
    char digest[2 * INDEX_DIGEST_BYTES + 1];
    bool has_digest = info->digest_kind != DIGEST_NONE;
    format_digest(info, digest);
    cli_json_text("digest", has_digest ? digest : NULL, SIZE_MAX);
    cli_json_text("digest_of",
                  !has_digest                           ? NULL
                  : info->digest_kind == DIGEST_CONTENT ? "names and contents"
                                                        : "names and sizes",
                  SIZE_MAX);
    cli_json_text("made_by",
                  pot->origin == POT_INDEX_EMBEDDED && info->made_by[0] ? info->made_by : NULL,
                  sizeof(info->made_by));
}

static void print_json(const struct pot *pot, const struct index_info *info,
                       const struct survey *survey, const struct batch *batch)
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
    cli_json_number("symlinks", survey->symlinks);
    cli_json_number("hardlinks", survey->hardlinks);
    cli_json_number("specials", survey->specials);
    cli_json_number("left_out", index_left_out(pot->index));
    cli_json_number("smallest_bytes", survey->smallest_bytes);
    cli_json_number("largest_bytes", survey->largest_bytes);
    if (batch->bytes) {
        cli_json_number("batch_bytes", batch->bytes);
        cli_json_number("batch_mean", batch->mean);
        cli_json_number("batch_worst", batch->worst);
    }
    print_json_sizes(survey);
    print_json_origin(pot, info);
    fputs("\n}", stdout);
}

static int show_archives(char **archives, int count, bool json, uint64_t batch_bytes,
                         enum cli_progress_mode progress)
{
    int status = CLI_OK;
    const char *separator = "";
    if (json)
        fputs("[", stdout);
    for (int i = 0; i < count; i++) {
        const struct pot_options options = {.names_only = true};
        struct pot *pot;
        if (cli_open_pot(archives[i], &options, progress, &pot) < 0) {
            status = CLI_FAILED;
            continue;
        }
        struct survey survey;
        struct batch batch = {.bytes = batch_bytes};
        int r = survey_index(pot->index, &survey);
        if (r == 0 && batch_bytes)
            r = batch_fit_index(pot->index, batch_bytes, &batch.mean, &batch.worst);
        if (r < 0) {
            status =
                r == -ENOMEM
                    ? cli_failf(archives[i], "there is no memory for the sizes of its files")
                    : cli_failf(archives[i],
                                "its index is damaged; 'onepot verify' tells where");
            pot_close(pot);
            continue;
        }
        fputs(separator, stdout);
        if (json)
            print_json(pot, index_info(pot->index), &survey, &batch);
        else
            print_text(pot, index_info(pot->index), &survey, &batch);
        separator = json ? ",\n" : "\n";
        pot_close(pot);
    }
    if (json)
        fputs("]\n", stdout);
    return status;
}

/* ---- GPUs ---- */

/* Print a GPU's line; return its free memory. */
static int print_gpu(uint32_t index, struct onepot_error *error, uint64_t *ret_free)
{
    struct onepot_device_info gpu = {.size = sizeof(gpu)};
    struct onepot_device *device = NULL;
    char name[32], free_bytes[CLI_TEXT_LEN], total_bytes[CLI_TEXT_LEN];
    snprintf(name, sizeof(name), "cuda:%" PRIu32, index);
    int r = onepot_device_open(name, error, &device);
    if (r < 0)
        return r;
    r = onepot_device_info(device, error, &gpu);
    onepot_device_close(device);
    if (r < 0)
        return r;
    printf("%s: %s, %s free of %s", name, gpu.name,
           cli_format_bytes(gpu.free_bytes, free_bytes),
           cli_format_bytes(gpu.total_bytes, total_bytes));
    if (gpu.numa_node >= 0)
        printf(", NUMA node %" PRId32, gpu.numa_node);
    putchar('\n');
    *ret_free = gpu.free_bytes;
    return 0;
}

/* The largest batch for the GPU with the least room; 0: there is no GPU. */
static uint64_t print_gpus(void)
{
    struct onepot_error error = {0};
    uint64_t least = UINT64_MAX, free_bytes = 0;
    uint32_t count = 0;
    int r = onepot_device_count("cuda", &error, &count);
    for (uint32_t i = 0; i < count && r == 0; i++) {
        r = print_gpu(i, &error, &free_bytes);
        if (r == 0 && free_bytes < least)
            least = free_bytes;
    }
    if (r < 0)
        printf("no GPU: %s\n", error.text);
    else if (count == 0)
        puts("no GPU: this process sees none");
    return r < 0 || count == 0 ? 0 : least / ONEPOT_DEVICE_BATCHES;
}

enum { OPTION_JSON = CLI_OPTION_OWN, OPTION_PROGRESS, OPTION_BATCH, OPTION_GPU };

int command_info(int argc, char **argv)
{
    static const struct option longs[] = {
        {"json", no_argument, NULL, OPTION_JSON},
        {"batch-for", required_argument, NULL, OPTION_BATCH},
        {"gpu", no_argument, NULL, OPTION_GPU},
        {"progress", required_argument, NULL, OPTION_PROGRESS},
        CLI_ARCHIVE_OPTIONS_END,
    };
    bool json = false, gpu = false;
    uint64_t batch_bytes = 0, room = 0;
    enum cli_progress_mode progress = CLI_PROGRESS_AUTO;
    int opt, status = CLI_GO_ON;
    while ((opt = cli_getopt(&usage, argc, argv, "", longs, &status)) != -1) {
        if (opt == OPTION_JSON)
            json = true;
        else if (opt == OPTION_GPU)
            gpu = true;
        else if (opt == OPTION_PROGRESS && cli_progress_option(&usage, optarg, &progress) != 0)
            return CLI_USAGE;
        else if (opt == OPTION_BATCH &&
                 cli_size_option(&usage, "--batch-for", optarg, &batch_bytes) != 0)
            return CLI_USAGE;
    }
    if (status != CLI_GO_ON)
        return status;
    if (gpu && json)
        return cli_usage_error(&usage, "--gpu and --json exclude each other");
    if (gpu)
        room = print_gpus();
    if (optind == argc)
        return gpu ? CLI_OK : cli_usage_error(&usage, "no archive was named");
    if (!batch_bytes)
        batch_bytes = room;
    return show_archives(argv + optind, argc - optind, json, batch_bytes, progress);
}
