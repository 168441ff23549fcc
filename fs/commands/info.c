/*
 * onepot info: an archive's format and contents. All of it comes from the index; no member is
 * touched, unless a digest is asked for that the index can't make.
 */
#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "batch_fit.h"
#include "cleanup.h"
#include "cli.h"
#include "codec.h"
#include "commands.h"
#include "json.h"
#include "output.h"
#ifdef HAVE_GPU
#include "onepot_device.h"
#endif

static int info_main(int argc, char **argv);

const struct cli_command command_info = {
    "info", info_main, "describe an archive",
    "[--json] [--digest] [--batch-for SIZE] ARCHIVE...",
    "Print format, members, bytes, sizes of files, compression, index, checksums and\n"
    "digest of archives.\n"};

/*
 * Sizes are counted by powers of two. That needs the same memory for any number of files, and
 * answers a person's questions: are they small? is one of them huge? Class 0: empty files;
 * class i: sizes from 2^(i-1) bytes to 2^i - 1.
 */
#define SURVEY_CLASSES 65

struct survey {
    uint64_t files; /* regular, each inode once */
    uint64_t directories;
    uint64_t symlinks;
    uint64_t links_out; /* of the tree; the first of them: */
    uint32_t first_out;
    uint64_t hardlinks; /* further names of an inode */
    uint64_t specials;  /* fifos, sockets, devices */
    uint64_t size_files[SURVEY_CLASSES];
    uint64_t size_bytes[SURVEY_CLASSES];
    uint64_t smallest_bytes, largest_bytes; /* 0 without files */
    uint64_t batch_bytes; /* 0: not requested; else how many files fit into such a batch */
    uint64_t batch_mean, batch_worst;
};

/* ---- counting: one walk over the index ---- */

/* The size class of `bytes`. */
static unsigned survey_class(uint64_t bytes)
{
    return bytes ? 64u - (unsigned)__builtin_clzll(bytes) : 0;
}

static void count_file(struct survey *s, uint64_t bytes)
{
    unsigned i = survey_class(bytes);
    if (s->files == 0 || bytes < s->smallest_bytes)
        s->smallest_bytes = bytes;
    if (bytes > s->largest_bytes)
        s->largest_bytes = bytes;
    s->files++;
    s->size_files[i]++;
    s->size_bytes[i] += bytes;
}

static void count_entry(struct survey *s, uint32_t position, const struct node *node)
{
    if (node->position != position)
        s->hardlinks++;
    else if (S_ISREG(node->mode))
        count_file(s, node->size_bytes);
    else if (S_ISDIR(node->mode))
        s->directories++;
    else if (S_ISLNK(node->mode))
        s->symlinks++;
    else
        s->specials++;
}

/* Count into a survey that is all zero. -EUCLEAN. */
static int survey_index(const struct index *index, struct survey *survey)
{
    struct node node;
    int r = 0;
    for (uint32_t i = 0; r == 0 && i < index_info(index)->entries; i++) {
        r = index_node(index, i, &node);
        if (r == 0)
            count_entry(survey, i, &node);
        if (r == 0 && S_ISLNK(node.mode) && index_leads_out(index, i) &&
            survey->links_out++ == 0)
            survey->first_out = i;
    }
    return r;
}

/* Origins of an index: for programs, and for people with a path and without. */
static const struct {
    const char *name, *in, *alone;
} origins[] = {
    [FILESET_INDEX_EMBEDDED] = {"embedded", "in the archive in ", "in the archive"},
    [FILESET_INDEX_SAVED] = {"saved", "saved in ", "saved"},
    [FILESET_INDEX_BUILT] = {"built", "made just now and saved in ", "made just now"},
};

/* ---- for people ---- */

static void print_size(const char *label, uint64_t bytes)
{
    printf("  %-12s %s", label, cli_bytes(bytes));
    if (bytes >= 1024)
        printf(" (%s bytes)", cli_count(bytes));
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
        if (i < 2 || kinds[i].count)
            printf("%s%s %s", i ? ", " : "", cli_count(kinds[i].count),
                   kinds[i].count == 1 ? kinds[i].one : kinds[i].many);
    }
    putchar('\n');
}

static void print_format(const struct fileset *fileset)
{
    printf("  %-12s %s", "format", fileset->backend->name);
    if (fileset->container.name)
        printf(" in %s, at offset %" PRIu64, fileset->container.name,
               fileset->container.offset);
    putchar('\n');
}

/* The archive's size compared with its contents'. */
static void print_ratio(const struct fileset *fileset, const struct index_info *info)
{
    double packed = (double)(fileset->container.name ? fileset->container.length
                                                     : fileset->identity.size_bytes),
           data = (double)info->data_bytes;
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
static void command_info_histogram(const struct survey *survey)
{
    unsigned first = survey_class(survey->smallest_bytes);
    unsigned last = survey_class(survey->largest_bytes);
    uint64_t most = 1;
    for (unsigned i = first; i <= last; i++)
        if (survey->size_files[i] > most)
            most = survey->size_files[i];
    for (unsigned i = first; survey->files && i <= last; i++) {
        char text[CLI_TEXT_LEN];
        printf("  %-12s %8s %-4s %13s ", i == first ? "file sizes" : "",
               i ? class_text(i, text) : "empty", i ? "or >" : "",
               cli_count(survey->size_files[i]));
        if (survey->size_files[i])
            print_bar(survey->size_files[i], most);
        putchar('\n');
    }
}

static void print_sizes(const struct survey *survey)
{
    uint64_t bytes = 0;
    if (!survey->files)
        return;
    for (unsigned i = 0; i < SURVEY_CLASSES; i++)
        bytes += survey->size_bytes[i];
    printf("  %-12s %s to %s, %s on average\n", "of a file", cli_bytes(survey->smallest_bytes),
           cli_bytes(survey->largest_bytes), cli_bytes(bytes / survey->files));
    if (isatty(STDOUT_FILENO))
        command_info_histogram(survey);
}

#define CODEC_LIST_BYTES 200 /* for all of them */

/* The codecs of the archive's blocks: "zstd", or "deflate, xz" where each block names its own.
 */
static const char *codec_list(const struct index_info *info, char buf[CODEC_LIST_BYTES])
{
    size_t len = 0;
    bool has_own = info->codec > CODEC_NONE && info->codec < CODEC_COUNT;
    uint32_t codecs = info->codecs | (has_own ? 1u << info->codec : 0);
    if (!info->codecs)
        return codec_name(info->codec);
    snprintf(buf, CODEC_LIST_BYTES, "unknown");
    for (unsigned codec = 1; codec < CODEC_COUNT; codec++)
        if (codecs & 1u << codec && codec != CODEC_INT64) /* which compresses nothing */
            len += (size_t)snprintf(buf + len, CODEC_LIST_BYTES - len, "%s%s", len ? ", " : "",
                                    codec_name((enum codec)codec));
    return buf;
}

static void print_compression(const struct fileset *fileset, const struct index_info *info)
{
    char codecs[CODEC_LIST_BYTES];
    if (fileset->compression)
        printf("  %-12s %s, of the whole archive\n", "compression", fileset->compression);
    else if (info->codec == CODEC_NONE && !(info->codecs & ~(1u << CODEC_INT64)))
        printf("  %-12s none\n", "compression");
    else
        printf("  %-12s %s, in blocks of at most %s\n", "compression", codec_list(info, codecs),
               cli_bytes(info->block_bytes));
}

static void print_left_out(const struct fileset *fileset)
{
    uint64_t left_out = index_left_out(fileset->index);
    char kinds[LEFT_OUT_TEXT_LEN];
    index_left_out_text(fileset->index, kinds);
    if (left_out)
        printf("  %-12s %s; 'onepot verify' lists them\n", "left out", kinds);
    uint64_t xattrs = index_xattrs_left_out(fileset->index);
    if (xattrs)
        printf("  %-12s %s extended attributes that Linux has no place for\n",
               left_out ? "" : "left out", cli_count(xattrs));
}

static void print_links_out(const struct fileset *fileset, const struct survey *survey)
{
    char path[INDEX_PATH_MAX + 1] = "";
    size_t len = 0;
    if (!survey->links_out)
        return;
    (void)index_path(fileset->index, survey->first_out, path, sizeof(path), &len);
    printf("  %-12s %s of the symbolic links, the first is ", "leading out",
           cli_count(survey->links_out));
    cli_print_safe(stdout, path, strlen(path));
    putchar('\n');
}

static void print_index(const struct fileset *fileset, const struct index_info *info)
{
    const char *path = fileset->index_path ? fileset->index_path : "";
    printf("  %-12s %s, %s", "index", cli_bytes(info->image_bytes),
           *path ? origins[fileset->origin].in : origins[fileset->origin].alone);
    cli_print_safe(stdout, path, strlen(path));
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

/* The archive's digest, and its maker if it records that. */
static void print_origin(const struct fileset *fileset, const struct index_info *info,
                         const char *digest)
{
    if (*digest)
        printf("  %-12s %s (names, types, modes, contents)\n", "digest", digest);
    else
        printf("  %-12s not known; with --digest, files are read for it\n", "digest");
    if (fileset->origin == FILESET_INDEX_EMBEDDED && info->made_by[0]) {
        printf("  %-12s ", "made by");
        cli_print_safe(stdout, info->made_by, strnlen(info->made_by, sizeof(info->made_by)));
        putchar('\n');
    }
}

static void print_batch(const struct survey *survey)
{
    printf("  %-12s %s hold %s files on average, %s of the largest\n", "batch",
           cli_bytes(survey->batch_bytes), cli_count(survey->batch_mean),
           cli_count(survey->batch_worst));
}

/* "12 archives: tar, zip" */
static void print_parts(const struct fileset *fileset)
{
    printf("  %-12s %s: ", "archives", cli_count(fileset->part_count));
    for (size_t i = 0, named = 0; backend_registry[i]; i++)
        for (size_t part = 0; part < fileset->part_count; part++)
            if (fileset->parts[part].backend == backend_registry[i]) {
                printf("%s%s", named++ ? ", " : "", backend_registry[i]->name);
                break;
            }
    putchar('\n');
}

static void print_sums(const struct fileset *fileset, const struct fileset_sums *sums)
{
    char text[FILESET_SUMS_TEXT_LEN];
    bool has_some = sums->some || sums->every;
    printf("  %-12s %s%s%s\n", "checksums",
           has_some ? "" : "none: ", fileset_sums_text(fileset, sums, text),
           !has_some && fileset_is_packed(fileset)
               ? "; 'onepot verify' compares those of its compression"
               : "");
}

static void print_stripes(const struct fileset *fileset)
{
    unsigned stripes;
    if (!fileset->parts && stripes_of(fileset->path, &stripes) == 0)
        printf("  %-12s %s storage %s\n", "stripes", cli_count(stripes),
               stripes == 1 ? "target" : "targets");
}

static void command_info_text(const struct fileset *fileset, const struct index_info *info,
                              const struct fileset_sums *sums, const struct survey *survey,
                              const char *digest)
{
    cli_print_safe(stdout, fileset->path, strlen(fileset->path));
    fputs(":\n", stdout);
    print_format(fileset);
    if (fileset->parts)
        print_parts(fileset);
    print_size("size", fileset->identity.size_bytes);
    print_stripes(fileset);
    print_members(survey);
    print_left_out(fileset);
    print_links_out(fileset, survey);
    print_size("contents", info->total_bytes);
    print_ratio(fileset, info);
    print_sizes(survey);
    if (survey->batch_bytes)
        print_batch(survey);
    print_compression(fileset, info);
    print_index(fileset, info);
    print_sums(fileset, sums);
    print_features(info);
    print_origin(fileset, info, digest);
}

/* ---- for programs ---- */

/* An array with one object for each size class that has files. */
static void json_sizes(struct json *j, const struct survey *survey)
{
    json_open(j, "sizes", '[');
    for (unsigned i = 0; i < SURVEY_CLASSES; i++) {
        if (!survey->size_files[i])
            continue;
        json_open(j, NULL, '{');
        json_number(j, "from_bytes", i ? UINT64_C(1) << (i - 1) : 0);
        json_number(j, "files", survey->size_files[i]);
        json_number(j, "bytes", survey->size_bytes[i]);
        json_close(j, '}');
    }
    json_close(j, ']');
}

static void json_origin(struct json *j, const struct fileset *fileset,
                        const struct index_info *info, const char *digest)
{
    json_text(j, "digest", *digest ? digest : NULL, SIZE_MAX);
    json_text(j, "made_by",
              fileset->origin == FILESET_INDEX_EMBEDDED && info->made_by[0] ? info->made_by
                                                                            : NULL,
              sizeof(info->made_by));
}

static void command_info_json(struct json *j, const struct fileset *fileset,
                              const struct index_info *info, const struct fileset_sums *sums,
                              const struct survey *survey, const char *digest)
{
    uint64_t known = info->files + info->directories;
    char codecs[CODEC_LIST_BYTES];
    unsigned stripes;
    json_open(j, NULL, '{');
    json_text(j, "archive", fileset->path, SIZE_MAX);
    json_text(j, "format", fileset->backend->name, SIZE_MAX);
    json_number(j, "archive_count", fileset->parts ? fileset->part_count : 1);
    json_open(j, "archives", '[');
    for (size_t i = 0; i < fileset->part_count; i++)
        json_text(j, NULL, fileset->parts[i].path, SIZE_MAX);
    if (!fileset->parts)
        json_text(j, NULL, fileset->path, SIZE_MAX);
    json_close(j, ']');
    json_number(j, "size_bytes", fileset->identity.size_bytes);
    if (!fileset->parts && stripes_of(fileset->path, &stripes) == 0)
        json_number(j, "stripes", stripes);
    json_text(j, "container", fileset->container.name, SIZE_MAX);
    json_number(j, "offset", fileset->container.offset);
    json_text(j, "compression", fileset->compression, SIZE_MAX);
    json_text(j, "codec", codec_list(info, codecs), SIZE_MAX);
    json_number(j, "block_bytes", info->block_bytes);
    json_number(j, "entries", info->entries);
    json_number(j, "files", info->files);
    json_number(j, "directories", info->directories);
    json_number(j, "others", info->entries > known ? info->entries - known : 0);
    json_number(j, "inodes", info->inodes);
    json_number(j, "total_bytes", info->total_bytes);
    json_number(j, "data_bytes", info->data_bytes);
    json_text(j, "index_origin", origins[fileset->origin].name, SIZE_MAX);
    json_text(j, "index_path", fileset->index_path, SIZE_MAX);
    json_number(j, "index_bytes", info->image_bytes);
    json_bool(j, "has_sums", sums->every);
    json_bool(j, "has_some_sums", sums->some);
    json_bool(j, "has_hardlinks", info->has_hardlinks);
    json_bool(j, "has_holes", info->has_holes);
    json_bool(j, "has_xattrs", info->has_xattrs);
    json_number(j, "symlinks", survey->symlinks);
    json_number(j, "links_out", survey->links_out);
    json_number(j, "hardlinks", survey->hardlinks);
    json_number(j, "specials", survey->specials);
    json_left_out(j, fileset->index);
    json_number(j, "xattrs_left_out", index_xattrs_left_out(fileset->index));
    json_number(j, "smallest_bytes", survey->smallest_bytes);
    json_number(j, "largest_bytes", survey->largest_bytes);
    if (survey->batch_bytes) {
        json_number(j, "batch_bytes", survey->batch_bytes);
        json_number(j, "batch_mean", survey->batch_mean);
        json_number(j, "batch_worst", survey->batch_worst);
    }
    json_sizes(j, survey);
    json_origin(j, fileset, info, digest);
    json_close(j, '}');
}

/* ---- archives ---- */

/* How many of all regular files fit in a batch, counted by name. -ENOMEM, -EUCLEAN. */
static int fit_batch(const struct index *index, struct survey *survey)
{
    uint32_t entries = index_info(index)->entries;
    size_t count = 0;
    auto_free uint64_t *sizes = calloc((size_t)entries + 1, sizeof(*sizes));
    if (!sizes)
        return -ENOMEM;
    for (uint32_t i = 0; i < entries; i++) {
        struct node node;
        int r = index_node(index, i, &node);
        if (r < 0)
            return r;
        if (S_ISREG(node.mode))
            sizes[count++] = node.size_bytes;
    }
    batch_fit(sizes, count, survey->batch_bytes, BATCH_FIT_ALIGN, &survey->batch_mean,
              &survey->batch_worst);
    return 0;
}

/* Count the archive's members. Returns CLI_OK, or CLI_FAILED after printing an error. */
static int count_contents(const struct fileset *fileset, struct fileset_sums *sums,
                          struct survey *survey)
{
    int r = survey_index(fileset->index, survey);
    if (r == 0)
        r = fileset_sums(fileset, sums);
    if (r == 0 && survey->batch_bytes)
        r = fit_batch(fileset->index, survey);
    if (r == -ENOMEM)
        return cli_failf(fileset->path, "there is no memory for the sizes of its files");
    if (r < 0)
        return cli_failf(fileset->path, "its index is damaged; 'onepot verify' tells where");
    return CLI_OK;
}

/* `json`: NULL for text. `first`: nothing was printed before. */
static int show_archive(const char *archive, struct json *json, uint64_t batch_bytes,
                        bool digests, bool first)
{
    const struct fileset_options options = {.names_only = !digests};
    char digest[2 * INDEX_DIGEST_BYTES + 1] = "";
    struct survey survey = {.batch_bytes = batch_bytes};
    struct fileset_sums sums;
    struct fileset *fileset;
    fflush(stdout); /* opening may leave the rest to a copy of this process */
    if (cli_open_fileset(archive, &options, &fileset) < 0)
        return CLI_FAILED;
    int status = count_contents(fileset, &sums, &survey);
    bool is_known = index_info(fileset->index)->digest_kind == DIGEST_TREE;
    if (status == CLI_OK && (digests || is_known) && cli_digest(fileset, &options, digest) < 0)
        status = CLI_FAILED;
    if (status == CLI_OK && json)
        command_info_json(json, fileset, index_info(fileset->index), &sums, &survey, digest);
    if (status == CLI_OK && !json) {
        fputs(first ? "" : "\n", stdout);
        command_info_text(fileset, index_info(fileset->index), &sums, &survey, digest);
    }
    fileset_close(fileset);
    return status;
}

static int show_archives(char **archives, int count, bool as_json, uint64_t batch_bytes,
                         bool digests)
{
    struct json json = {.out = stdout, .lines = 2};
    bool first = true;
    int status = CLI_OK;
    if (as_json)
        json_open(&json, NULL, '[');
    for (int i = 0; i < count; i++) {
        int one =
            show_archive(archives[i], as_json ? &json : NULL, batch_bytes, digests, first);
        first &= one != CLI_OK;
        status = one == CLI_OK ? status : one;
    }
    if (as_json)
        json_close(&json, ']');
    return status;
}

/* ---- GPUs ---- */

#ifdef HAVE_GPU
/* Print a GPU's line; return its free memory. */
static int print_gpu(uint32_t index, struct onepot_error *error, uint64_t *ret_free)
{
    struct onepot_device_info gpu = {.size = sizeof(gpu)};
    struct onepot_device *device = NULL;
    char name[32];
    snprintf(name, sizeof(name), "cuda:%" PRIu32, index);
    int r = onepot_device_open(name, error, &device);
    if (r < 0)
        return r;
    r = onepot_device_info(device, error, &gpu);
    onepot_device_close(device);
    if (r < 0)
        return r;
    printf("%s: %s, %s free of %s", name, gpu.name, cli_bytes(gpu.free_bytes),
           cli_bytes(gpu.total_bytes));
    if (gpu.numa_node >= 0)
        printf(", NUMA node %" PRId32, gpu.numa_node);
    putchar('\n');
    *ret_free = gpu.free_bytes;
    return 0;
}

/* Returns the largest batch for the GPU with the least room; 0: there is no GPU. */
static uint64_t show_gpus(void)
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
#endif

static int info_main(int argc, char **argv)
{
    bool json = false, gpu = false, digests = false;
    uint64_t batch_bytes = 0, room = 0;
    const struct cli_option options[] = {
        {"--batch-for=SIZE", "how many samples a batch of so many bytes has room for",
         .size = &batch_bytes},
        {"--digest", "find the digest even if all files have to be read for it",
         .flag = &digests},
        {"--json", "print one array of objects", .flag = &json},
        CLI_ARCHIVES,
#ifdef HAVE_GPU
        {"--gpu", "GPUs and their free memory, and the batch that it has room for",
         .flag = &gpu},
#endif
        {NULL},
    };
    int status = cli_parse(&command_info, options, argc, argv);
    if (status != CLI_GO_ON)
        return status;
    if (gpu && json)
        return cli_usage_error(&command_info, "--gpu and --json exclude each other");
#ifdef HAVE_GPU
    if (gpu)
        room = show_gpus();
#endif
    if (optind == argc)
        return gpu ? CLI_OK : cli_usage_error(&command_info, "no archive was named");
    if (!batch_bytes)
        batch_bytes = room;
    return show_archives(argv + optind, argc - optind, json, batch_bytes, digests);
}
