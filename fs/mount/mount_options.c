/*
 * Options of mount and run. An option that DESIGN names but no code serves yet is refused by
 * name: a job that asked for an order and did not get it would only be slow.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "cleanup.h"
#include "mount_options.h"
#include "source.h"

enum {
    OPT_AT = CLI_OPTION_OWN,
    OPT_PRIVATE,
    OPT_SUBDIR,
    OPT_THREADS,
    OPT_CACHE,
    OPT_IDLE,
    OPT_GRACE,
    OPT_OWNER,
    OPT_IO_TIMEOUT,
    OPT_RETRIES,
    OPT_ALLOW_OTHER,
    OPT_UID,
    OPT_GID,
    OPT_LOG,
    OPT_PROGRESS,
    OPT_READAHEAD,
    OPT_VERIFY,
    OPT_STAGE,
    OPT_ORDER,
    OPT_RECORD,
    OPT_SEED,
    OPT_NOT_YET, /* this and all after it */
    OPT_ON_CONFLICT = OPT_NOT_YET,
    OPT_NESTED,
};

static const struct option longs[] = {
    {"foreground", no_argument, NULL, 'f'},
    {"at", required_argument, NULL, OPT_AT},
    {"private", required_argument, NULL, OPT_PRIVATE},
    {"subdir", required_argument, NULL, OPT_SUBDIR},
    {"threads", required_argument, NULL, OPT_THREADS},
    {"cache", required_argument, NULL, OPT_CACHE},
    {"idle", required_argument, NULL, OPT_IDLE},
    {"grace", required_argument, NULL, OPT_GRACE},
    {"owner", required_argument, NULL, OPT_OWNER},
    {"io-timeout", required_argument, NULL, OPT_IO_TIMEOUT},
    {"retries", required_argument, NULL, OPT_RETRIES},
    {"allow-other", no_argument, NULL, OPT_ALLOW_OTHER},
    {"uid", required_argument, NULL, OPT_UID},
    {"gid", required_argument, NULL, OPT_GID},
    {"log", required_argument, NULL, OPT_LOG},
    {"progress", required_argument, NULL, OPT_PROGRESS},
    {"readahead", required_argument, NULL, OPT_READAHEAD},
    {"stage", optional_argument, NULL, OPT_STAGE},
    {"order", required_argument, NULL, OPT_ORDER},
    {"record", required_argument, NULL, OPT_RECORD},
    {"seed", required_argument, NULL, OPT_SEED},
    {"verify", no_argument, NULL, OPT_VERIFY},
    {"on-conflict", required_argument, NULL, OPT_ON_CONFLICT},
    {"nested", no_argument, NULL, OPT_NESTED},
    CLI_ARCHIVE_OPTIONS_END,
};

#define SECONDS_MAX (366u * 24 * 3600)

static const char *long_name(int opt)
{
    for (const struct option *o = longs; o->name; o++)
        if (o->val == opt)
            return o->name;
    return "?";
}

/* Parse one word of -o. Words for fixed properties of a mount are accepted. */
static int parse_fuse_word(const struct cli_usage *usage, char *word, struct mount_options *o)
{
    static const char *const always[] = {"ro", "nosuid", "nodev", "noatime"};

    for (size_t i = 0; i < sizeof(always) / sizeof(always[0]); i++)
        if (strcmp(word, always[i]) == 0)
            return CLI_GO_ON;
    if (strcmp(word, "noexec") == 0 || strcmp(word, "exec") == 0) /* the last one counts */
        o->noexec = word[0] == 'n';
    else if (strcmp(word, "nonempty") == 0)
        o->nonempty = true;
    else if (strcmp(word, "default_permissions") == 0)
        o->default_permissions = true;
    else if (strcmp(word, "allow_other") == 0)
        o->allow_other = true;
    else if (strncmp(word, "fsname=", 7) == 0 && word[7])
        o->fsname = word + 7;
    else
        return cli_usage_error(usage,
                               "-o %s is not supported (a mount is always "
                               "ro,nosuid,nodev,noatime; known are exec, noexec, nonempty, "
                               "default_permissions, allow_other, fsname=NAME)",
                               word);
    return CLI_GO_ON;
}

static int parse_fuse_options(const struct cli_usage *usage, char *list,
                              struct mount_options *o)
{
    int status = CLI_GO_ON;
    for (char *word; status == CLI_GO_ON && (word = strsep(&list, ","));)
        if (*word)
            status = parse_fuse_word(usage, word, o);
    return status;
}

/* Read an option's number into *ret: CLI_GO_ON, or the exit status. */
static int parse_number(const struct cli_usage *usage, int opt, uint64_t min, uint64_t max,
                        uint64_t *ret)
{
    char name[32];
    snprintf(name, sizeof(name), "--%s", long_name(opt));
    int r = cli_number_option(usage, name, optarg, min, max, ret);
    return r == 0 ? CLI_GO_ON : r;
}

static int parse_numeric(const struct cli_usage *usage, int opt, struct mount_options *o)
{
    static const struct limits {
        int opt;
        uint64_t min, max;
    } limits[] = {
        {OPT_THREADS, 0, 1024},       {OPT_IDLE, 1, SECONDS_MAX},
        {OPT_GRACE, 1, SECONDS_MAX},  {OPT_IO_TIMEOUT, 0, SECONDS_MAX},
        {OPT_OWNER, 1, INT32_MAX},    {OPT_UID, 0, UINT32_MAX - 1},
        {OPT_GID, 0, UINT32_MAX - 1}, {OPT_RETRIES, 0, 100},
        {OPT_SEED, 0, UINT64_MAX},
    };
    uint64_t n = 0;
    int status = CLI_GO_ON;

    for (size_t i = 0; i < sizeof(limits) / sizeof(limits[0]); i++)
        if (limits[i].opt == opt)
            status = parse_number(usage, opt, limits[i].min, limits[i].max, &n);
    if (opt == OPT_THREADS)
        o->threads = (unsigned)n;
    else if (opt == OPT_IDLE)
        o->idle_s = (unsigned)n;
    else if (opt == OPT_GRACE)
        o->grace_s = (unsigned)n;
    else if (opt == OPT_IO_TIMEOUT)
        o->io_timeout_s = (unsigned)n;
    else if (opt == OPT_RETRIES)
        o->retries = (unsigned)n;
    else if (opt == OPT_OWNER)
        o->owner = (pid_t)n;
    else if (opt == OPT_SEED)
        o->seed = n;
    else if (opt == OPT_UID)
        o->uid = (uint32_t)n;
    else
        o->gid = (uint32_t)n;
    o->override_uid |= opt == OPT_UID;
    o->override_gid |= opt == OPT_GID;
    return status;
}

static int parse_readahead(const struct cli_usage *usage, const char *text, uint64_t *ret_bytes)
{
    if (strcmp(text, "off") == 0)
        *ret_bytes = 0;
    else if (strcmp(text, "auto") == 0)
        *ret_bytes = UINT64_MAX;
    else if (cli_parse_size(text, ret_bytes) < 0)
        return cli_usage_error(usage,
                               "--readahead: '%s' is neither auto nor off nor a size (a number "
                               "with K, M, G or T)",
                               text);
    return 0;
}

static int parse_private(const struct cli_usage *usage, const char *text,
                         enum private_mode *ret_mode)
{
    static const char *const words[] = {
        [PRIVATE_AUTO] = "auto", [PRIVATE_ON] = "on", [PRIVATE_OFF] = "off"};

    for (unsigned i = 0; i < sizeof(words) / sizeof(words[0]); i++)
        if (strcmp(text, words[i]) == 0) {
            *ret_mode = i;
            return 0;
        }
    return cli_usage_error(usage, "--private: '%s' is neither auto nor on nor off", text);
}

static int parse_option(const struct cli_usage *usage, int opt, struct mount_options *o)
{
    int r = 0;

    switch (opt) {
    case 'f':
        o->foreground = true;
        break;
    case 'o':
        return parse_fuse_options(usage, optarg, o);
    case OPT_AT:
        o->at = optarg;
        break;
    case OPT_PRIVATE:
        r = parse_private(usage, optarg, &o->private_mode);
        break;
    case OPT_SUBDIR:
        o->subdir = optarg;
        break;
    case OPT_LOG:
        o->log = optarg;
        break;
    case OPT_ALLOW_OTHER:
        o->allow_other = true;
        break;
    case OPT_VERIFY:
        o->verify = true;
        break;
    case OPT_STAGE:
        if (optarg && !*optarg)
            return cli_usage_error(usage, "--stage= needs a directory");
        o->stage = true;
        o->stage_place = optarg;
        break;
    case OPT_ORDER:
        o->order = optarg;
        break;
    case OPT_RECORD:
        o->record = optarg;
        break;
    case OPT_OWNER:
        if (strcmp(optarg, "none") != 0)
            return parse_numeric(usage, opt, o);
        o->owner = MOUNT_NO_OWNER;
        break;
    case OPT_CACHE:
        o->cache_given = true;
        r = cli_size_option(usage, "--cache", optarg, &o->cache_bytes);
        break;
    case OPT_PROGRESS:
        r = cli_progress_option(usage, optarg, &o->progress);
        break;
    case OPT_READAHEAD:
        r = parse_readahead(usage, optarg, &o->readahead_bytes);
        break;
    default:
        if (opt >= OPT_NOT_YET)
            return cli_usage_error(usage, "this version of onepot has no --%s yet",
                                   long_name(opt));
        return parse_numeric(usage, opt, o);
    }
    return r == 0 ? CLI_GO_ON : r;
}

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
    int opt, status = CLI_GO_ON;

    while (status == CLI_GO_ON &&
           (opt = cli_getopt(usage, argc, argv, "fo:", longs, &status)) != -1)
        status = parse_option(usage, opt, &o);
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
