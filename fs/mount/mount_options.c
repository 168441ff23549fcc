/*
 * Options of mount and run.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "cleanup.h"
#include "mount_options.h"
#include "source_retry.h"

#define SECONDS_MAX (366u * 24 * 3600)

/* Parse one word of -o. Words for fixed properties of a mount are accepted. */
static int take_fuse_word(const struct cli_usage *usage, const char *word,
                          struct mount_options *o)
{
    bool ignored;
    const struct {
        const char *word;
        bool *flag, value;
    } words[] = {
        {"ro", &ignored, true},
        {"nosuid", &ignored, true},
        {"nodev", &ignored, true},
        {"noatime", &ignored, true},
        {"noexec", &o->noexec, true}, /* of these two the last one counts */
        {"exec", &o->noexec, false},
        {"nonempty", &o->nonempty, true},
        {"default_permissions", &o->default_permissions, true},
        {"allow_other", &o->allow_other, true},
    };

    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
        if (strcmp(word, words[i].word) == 0) {
            *words[i].flag = words[i].value;
            return 0;
        }
    if (strncmp(word, "offset=", 7) == 0)
        return cli_take_offset(usage, NULL, word + 7);
    if (strncmp(word, "fsname=", 7) != 0 || !word[7])
        return cli_usage_error(usage,
                               "-o %s is not supported (a mount is always "
                               "ro,nosuid,nodev,noatime; known are exec, noexec, nonempty, "
                               "default_permissions, allow_other, fsname=NAME, offset=BYTES)",
                               word);
    o->fsname = word + 7;
    return 0;
}

static int take_fuse_words(const struct cli_usage *usage, void *ctx, const char *text)
{
    char *list = (char *)text; /* an argument of main, which may be cut into words */
    int r = 0;
    for (char *word; r == 0 && (word = strsep(&list, ","));)
        if (*word)
            r = take_fuse_word(usage, word, ctx);
    return r;
}

static int mount_take_owner(const struct cli_usage *usage, void *ctx, const char *text)
{
    struct mount_options *o = ctx;
    uint64_t pid = 0;
    if (strcmp(text, "none") == 0) {
        o->owner = MOUNT_NO_OWNER;
        return 0;
    }
    int r = cli_number_option(usage, "--owner", text, 1, INT32_MAX, &pid);
    o->owner = (pid_t)pid;
    return r;
}

static int take_readahead(const struct cli_usage *usage, void *ctx, const char *text)
{
    struct mount_options *o = ctx;
    if (strcmp(text, "off") == 0)
        o->readahead_bytes = 0;
    else if (strcmp(text, "auto") == 0)
        o->readahead_bytes = UINT64_MAX;
    else if (cli_parse_size(text, &o->readahead_bytes) < 0)
        return cli_usage_error(usage,
                               "--readahead: '%s' is neither auto nor off nor a size (a number "
                               "with K, M, G or T)",
                               text);
    return 0;
}

static int take_stage(const struct cli_usage *usage, void *ctx, const char *text)
{
    struct mount_options *o = ctx;
    if (text && !*text)
        return cli_usage_error(usage, "--stage= needs a directory");
    o->stage = true;
    o->stage_place = text;
    return 0;
}

static const char *const private_words[] = {
    [PRIVATE_AUTO] = "auto", [PRIVATE_ON] = "on", [PRIVATE_OFF] = "off", NULL};

/* Read the options into *o: CLI_GO_ON or the exit status. */
static int parse_table(const struct cli_usage *usage, bool for_run, int argc, char **argv,
                       struct mount_options *o)
{
    const struct cli_option options[] = {
        {"-f, --foreground",
         for_run ? NULL : "serve it in this process, until it is unmounted or interrupted",
         .flag = &o->foreground},
        {"--at=DIR", "show it at DIR, made if need be (default: a private directory)",
         .text = &o->at},
        {"--private=WHEN",
         for_run
             ? "auto, on, off: mount it for COMMAND alone, in a namespace of its own (auto: "
               "where something else is mounted at DIR)"
             : NULL,
         .word = &o->private_mode, .words = private_words},
        {"--subdir=PATH", "show only this directory of the archive", .text = &o->subdir},
        CLI_TOGETHER,
        {"--threads=N", "answer at most N requests at once (default: the CPUs of the job)",
         .count = &o->threads, .max = 1024},
        {"--cache=SIZE",
         "memory for decompressed blocks (default: a quarter of what the job may use)",
         .flag = &o->cache_given, .size = &o->cache_bytes},
        {"--readahead=WHAT",
         "auto, off, or at most so many bytes: read what readers will ask for before they do "
         "(default auto)",
         .take = take_readahead, .ctx = o},
        {"--order=FILE",
         "the order in which files will be read, a path or number a line; - for standard input",
         .text = &o->order},
        {"--record=FILE", "write down the order in which files are read", .text = &o->record},
        {"--seed=N", "seed of the sampler whose order is to be recognised (default 0)",
         .number = &o->seed, .max = UINT64_MAX},
        {"--stage[=DIR]",
         "copy it to this node while it is read: to memory, $TMPDIR or /tmp, or to DIR; its "
         "last "
         "mount removes the copy",
         .take = take_stage, .ctx = o},
        {"--idle=SECONDS", "end after so long without use", .count = &o->idle_s, .min = 1,
         .max = SECONDS_MAX},
        {"--grace=SECONDS", "when asked to end, wait at most so long for processes that use it",
         .count = &o->grace_s, .min = 1, .max = SECONDS_MAX},
        {"--owner=PID",
         "end when this process has ended; 'none': never (default: with the job or session "
         "that "
         "made it)",
         .take = mount_take_owner, .ctx = o},
        {"--io-timeout=SEC", "a read that takes longer fails; 0: never (default 60)",
         .count = &o->io_timeout_s, .max = SECONDS_MAX},
        {"--retries=N", "how often to repeat a failed read of the archive (default 4)",
         .count = &o->retries, .max = 100},
        {"--verify", "compare each file with its sum before it is served", .flag = &o->verify},
        {"--allow-other", "let other users in, by the permissions of the files",
         .flag = &o->allow_other},
        {"--uid=ID", "show every file as owned by this user", .flag = &o->override_uid,
         .count = &o->uid, .max = UINT32_MAX - 1},
        {"--gid=ID", "show every file as owned by this group", .flag = &o->override_gid,
         .count = &o->gid, .max = UINT32_MAX - 1},
        {"--log=FILE", "append what happens to FILE", .text = &o->log},
        {"-o OPTION[,...]",
         "noexec, nonempty, default_permissions, allow_other, fsname=NAME, offset=BYTES",
         .take = take_fuse_words, .ctx = o},
        CLI_VIEW,
        CLI_PROGRESS(&o->progress),
        CLI_MAX_RATIO,
        CLI_NESTED,
        CLI_OFFSET,
        {NULL},
    };
    return cli_parse(usage, options, argc, argv);
}

/* Checks that involve more than one option. */
static int check_together(const struct cli_usage *usage, bool for_run, int count,
                          char **archives, const struct mount_options *o)
{
    if (count == 0)
        return cli_usage_error(usage, "no archive was named");
    for (int i = 0; i < count; i++)
        if (!*archives[i])
            return cli_usage_error(usage,
                                   "the archive's name is empty: a variable that is not set?");
    if (o->at && !*o->at)
        return cli_usage_error(usage, "--at needs a directory");
    if (for_run && o->foreground)
        return cli_usage_error(usage,
                               "there is no -f here: 'run' always waits for its command");
    if (!for_run && o->private_mode == PRIVATE_ON)
        return cli_usage_error(usage, "--private=on needs a command to be private to: 'onepot "
                                      "run' has one");
    if (o->allow_other && !o->at)
        return cli_usage_error(usage, "--allow-other needs --at DIR: the directory that onepot "
                                      "chooses is closed to other users");
    return CLI_GO_ON;
}

/* Read what the view's options name now, before a daemon has another standard input. */
static int read_view(char ret_view[RECIPE_NAME_LEN + 1])
{
    const struct pot_compose *compose;
    struct recipe recipe = {0};
    if (cli_compose(&compose) < 0)
        return CLI_FAILED;
    if (!compose || !compose->view)
        return CLI_GO_ON;
    view_describe(compose->view, &recipe);
    recipe_name(&recipe, ret_view);
    recipe_free(&recipe);
    return recipe.err < 0 ? cli_fail(NULL, recipe.err, NULL) : CLI_GO_ON;
}

int mount_options_parse(const struct cli_usage *usage, bool for_run, int argc, char **argv,
                        struct mount_options *ret_options)
{
    struct mount_options o = {
        .io_timeout_s = 60, .retries = SOURCE_RETRIES_DEFAULT, .readahead_bytes = UINT64_MAX};
    int status = parse_table(usage, for_run, argc, argv, &o);

    o.archives = argv + optind;
    o.archive_count = (size_t)(argc - optind);
    if (status == CLI_GO_ON)
        status = check_together(usage, for_run, argc - optind, argv + optind, &o);
    if (status == CLI_GO_ON)
        status = read_view(o.view);
    if (status != CLI_GO_ON)
        return status;
    o.default_permissions |= o.allow_other;
    *ret_options = o;
    ret_options->archive = cli_name_of(o.archives, o.archive_count, ret_options->archive_name);
    return CLI_GO_ON;
}

uint64_t mount_options_hash(const struct mount_options *o, const char *at, int64_t mtime_sec,
                            long mtime_nsec, uint64_t owner_start_ticks)
{
    auto_free char *text = NULL;
    const char *glob;
    bool nested = cli_nested(&glob);
    int n = asprintf(
        &text,
        "%s\n%s\n%s\n%s\n%s\n%s\n%s\n%" PRIu64 " %d%s\n%d%d%d%d%d%d%d%d %d%d%d %" PRIu32
        " %" PRIu32 " %u %u %u %u %u %" PRIu64 " %" PRIu64 " %d %" PRIu64 " %" PRIi64
        " %ld %" PRIu64 " %d%s",
        at ? at : "", o->subdir ? o->subdir : "", o->log ? o->log : "",
        o->fsname ? o->fsname : "", o->order ? o->order : "", o->record ? o->record : "",
        o->view, o->seed, o->stage, o->stage_place ? o->stage_place : "", o->foreground,
        o->allow_other, o->default_permissions, o->noexec, o->override_uid, o->override_gid,
        o->cache_given, o->nonempty, cli_together.each, (int)cli_together.on_conflict,
        cli_together.skip_damaged, o->uid, o->gid, o->threads, o->idle_s, o->grace_s,
        o->io_timeout_s, o->retries, o->cache_bytes, o->readahead_bytes, (int)o->owner,
        owner_start_ticks, mtime_sec, mtime_nsec, cli_offset(), nested, glob ? glob : "");
    if (n < 0) {
        text = NULL;
        return 0;
    }
    return XXH3_64bits_withSeed(text, (size_t)n, o->verify);
}
