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
#include "source.h"

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
    if (strncmp(word, "fsname=", 7) != 0 || !word[7])
        return cli_usage_error(usage,
                               "-o %s is not supported (a mount is always "
                               "ro,nosuid,nodev,noatime; known are exec, noexec, nonempty, "
                               "default_permissions, allow_other, fsname=NAME)",
                               word);
    o->fsname = word + 7;
    return 0;
}

static int take_fuse_words(const struct cli_usage *usage, void *target, const char *text)
{
    char *list = (char *)text; /* an argument of main, which may be cut into words */
    int r = 0;
    for (char *word; r == 0 && (word = strsep(&list, ","));)
        if (*word)
            r = take_fuse_word(usage, word, target);
    return r;
}

static int take_owner(const struct cli_usage *usage, void *target, const char *text)
{
    struct mount_options *o = target;
    uint64_t pid = 0;
    if (strcmp(text, "none") == 0) {
        o->owner = MOUNT_NO_OWNER;
        return 0;
    }
    int r = cli_number_option(usage, "--owner", text, 1, INT32_MAX, &pid);
    o->owner = (pid_t)pid;
    return r;
}

static int take_readahead(const struct cli_usage *usage, void *target, const char *text)
{
    struct mount_options *o = target;
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

static int take_stage(const struct cli_usage *usage, void *target, const char *text)
{
    struct mount_options *o = target;
    if (text && !*text)
        return cli_usage_error(usage, "--stage= needs a directory");
    o->stage = true;
    o->stage_place = text;
    return 0;
}

static const char *const private_words[] = {
    [PRIVATE_AUTO] = "auto", [PRIVATE_ON] = "on", [PRIVATE_OFF] = "off", NULL};

#define AT(member) CLI_AT(struct mount_options, member)
#define GIVEN(member) CLI_GIVEN(struct mount_options, member)

/* clang-format off */
static const struct cli_option options[] = {
    {"foreground", 'f', CLI_FLAG, AT(foreground)},
    {"", 'o', CLI_CALL, .call = take_fuse_words},
    {"at", 0, CLI_TEXT, AT(at)},
    {"private", 0, CLI_WORD, AT(private_mode), .words = private_words},
    {"subdir", 0, CLI_TEXT, AT(subdir)},
    {"threads", 0, CLI_NUMBER, AT(threads), .max = 1024},
    {"cache", 0, CLI_SIZE, AT(cache_bytes), GIVEN(cache_given)},
    {"idle", 0, CLI_NUMBER, AT(idle_s), .min = 1, .max = SECONDS_MAX},
    {"grace", 0, CLI_NUMBER, AT(grace_s), .min = 1, .max = SECONDS_MAX},
    {"owner", 0, CLI_CALL, .call = take_owner},
    {"io-timeout", 0, CLI_NUMBER, AT(io_timeout_s), .max = SECONDS_MAX},
    {"retries", 0, CLI_NUMBER, AT(retries), .max = 100},
    {"allow-other", 0, CLI_FLAG, AT(allow_other)},
    {"uid", 0, CLI_NUMBER, AT(uid), GIVEN(override_uid), .max = UINT32_MAX - 1},
    {"gid", 0, CLI_NUMBER, AT(gid), GIVEN(override_gid), .max = UINT32_MAX - 1},
    {"log", 0, CLI_TEXT, AT(log)},
    {"readahead", 0, CLI_CALL, .call = take_readahead},
    {"stage", 0, CLI_CALL, .is_optional = true, .call = take_stage},
    {"order", 0, CLI_TEXT, AT(order)},
    {"record", 0, CLI_TEXT, AT(record)},
    {"seed", 0, CLI_NUMBER, AT(seed), .max = UINT64_MAX},
    {"verify", 0, CLI_FLAG, AT(verify)},
    CLI_PROGRESS(struct mount_options, progress),
    CLI_MAX_RATIO,
    CLI_END,
};
/* clang-format on */

/* Checks that involve more than one option. */
static int check_together(const struct cli_usage *usage, bool for_run, int count,
                          char **archives, const struct mount_options *o)
{
    if (count == 0)
        return cli_usage_error(usage, "no archive was named");
    if (count > 1) /* or the syntax of other programs */
        return cli_usage_error(
            usage,
            "'%s' is one too many: this version of onepot mounts one archive "
            "at a time; %s",
            archives[1],
            for_run ? "a command is written after '--'"
                    : "a directory for it is named by --at");
    if (!*o->archive)
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

int mount_options_parse(const struct cli_usage *usage, bool for_run, int argc, char **argv,
                        struct mount_options *ret_options)
{
    struct mount_options o = {
        .io_timeout_s = 60, .retries = SOURCE_RETRIES_DEFAULT, .readahead_bytes = UINT64_MAX};
    int status = cli_parse(usage, options, argc, argv, &o);

    o.archive = optind < argc ? argv[optind] : "";
    if (status == CLI_GO_ON)
        status = check_together(usage, for_run, argc - optind, argv + optind, &o);
    if (status != CLI_GO_ON)
        return status;
    o.default_permissions |= o.allow_other;
    *ret_options = o;
    return CLI_GO_ON;
}

uint64_t mount_options_hash(const struct mount_options *o, const char *at, int64_t mtime_sec,
                            long mtime_nsec, uint64_t owner_start_ticks)
{
    auto_free char *text = NULL;
    int n = asprintf(
        &text,
        "%s\n%s\n%s\n%s\n%s\n%s\n%" PRIu64 " %d%s\n%d%d%d%d%d%d%d%d %" PRIu32 " %" PRIu32
        " %u %u %u %u %u %" PRIu64 " %" PRIu64 " %d %" PRIu64 " %" PRIi64 " %ld",
        at ? at : "", o->subdir ? o->subdir : "", o->log ? o->log : "",
        o->fsname ? o->fsname : "", o->order ? o->order : "", o->record ? o->record : "",
        o->seed, o->stage, o->stage_place ? o->stage_place : "", o->foreground, o->allow_other,
        o->default_permissions, o->noexec, o->override_uid, o->override_gid, o->cache_given,
        o->nonempty, o->uid, o->gid, o->threads, o->idle_s, o->grace_s, o->io_timeout_s,
        o->retries, o->cache_bytes, o->readahead_bytes, (int)o->owner, owner_start_ticks,
        mtime_sec, mtime_nsec);
    if (n < 0) {
        text = NULL;
        return 0;
    }
    return XXH3_64bits_withSeed(text, (size_t)n, o->verify);
}
