/*
 * Options of mount and run.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <linux/capability.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "archive_list.h"
#include "cleanup.h"
#include "mount_options.h"
#include "job.h"
#include "mountinfo.h"
#include "numbers.h"
#include "path.h"
#include "place.h"
#include "process.h"
#include "source_retry.h"
#include "syscalls.h"

#define SECONDS_MAX (366u * 24 * 3600)

#define DEFAULTS                                                                               \
    {                                                                                          \
        .io_timeout_s = 60, .retries = SOURCE_RETRIES_DEFAULT, .readahead_bytes = UINT64_MAX   \
    }

/* ---- -o ---- */

/* Words that always hold here, or ask for nothing that this mount has to do. */
static const char *const words_that_hold[] = {
    "ro",           "nosuid",     "nodev",       "noatime",        "nodiratime", "defaults",
    "async",        "auto",       "noauto",      "user",           "users",      "nouser",
    "_netdev",      "nofail",     "async_read",  "big_writes",     "clone_fd",   "hard_remove",
    "kernel_cache", "use_ino",    "readdir_ino", "no_remote_lock", "intr",       "splice_read",
    "splice_write", "splice_move"};

static const struct {
    const char *word, *why;
} refused_words[] = {
    {"rw", "a mount is read-only"},
    {"suid", "set-user-ID bits have no effect in a mount"},
    {"dev", "devices have no effect in a mount"},
    {"allow_root", "allow_other lets root in, too"},
    {"auto_unmount",
     "a mount ends with its job or --owner, and the next start of onepot removes "
     "one whose process was killed"},
    {"sync", "a mount is read-only"},
    {"dirsync", "a mount is read-only"},
    {"remount", "unmount it, and mount it with other options"},
    {"atime", "a mount is read-only"},
    {"strictatime", "a mount is read-only"},
    {"auto_cache", "what is cached never changes"},
    {"direct_io", "what is cached never changes"},
    {"sync_read", "the mount itself decides how it is read"},
    {"writeback_cache", "a mount is read-only"},
};

static int refuse_word(const struct cli_command *command, const char *word)
{
    for (size_t i = 0; i < sizeof(refused_words) / sizeof(refused_words[0]); i++)
        if (strcmp(word, refused_words[i].word) == 0)
            return cli_usage_error(command, "-o %s is not supported: %s", word,
                                   refused_words[i].why);
    return cli_usage_error(command,
                           "-o %s is not supported (a mount is always "
                           "ro,nosuid,nodev,noatime; known are exec, noexec, nonempty, "
                           "default_permissions, allow_other, uid=ID, gid=ID, subdir=PATH, "
                           "fsname=NAME, offset=BYTES)",
                           word);
}

/* -EINVAL: there is no such flag. */
static int take_flag_word(const char *word, struct mount_options *o)
{
    const struct {
        const char *word;
        bool *flag, value;
    } flags[] = {
        {"noexec", &o->noexec, true}, /* of these two the last one counts */
        {"exec", &o->noexec, false},
        {"nonempty", &o->nonempty, true},
        {"default_permissions", &o->default_permissions, true},
        {"allow_other", &o->allow_other, true},
    };

    for (size_t i = 0; i < sizeof(words_that_hold) / sizeof(words_that_hold[0]); i++)
        if (strcmp(word, words_that_hold[i]) == 0)
            return 0;
    for (size_t i = 0; i < sizeof(flags) / sizeof(flags[0]); i++)
        if (strcmp(word, flags[i].word) == 0) {
            *flags[i].flag = flags[i].value;
            return 0;
        }
    return strncmp(word, "x-", 2) == 0 ? 0 : -EINVAL; /* comments in fstab(5) */
}

static int take_id(const struct cli_command *command, const char *option, const char *text,
                   uint32_t *ret_id, bool *ret_given)
{
    uint64_t id = 0;
    int r = cli_number_option(command, option, text, 0, UINT32_MAX - 1, &id);
    *ret_id = (uint32_t)id;
    *ret_given = r == 0;
    return r;
}

/* Parse one word of -o. */
static int take_fuse_word(const struct cli_command *command, const char *word,
                          struct mount_options *o)
{
    static const char *const names[] = {"offset=", "uid=", "gid=", "fsname=", "subdir=", NULL};
    enum { OFFSET, UID, GID, FSNAME, SUBDIR };
    size_t i = 0;

    while (names[i] && strncmp(word, names[i], strlen(names[i])) != 0)
        i++;
    const char *value = names[i] ? word + strlen(names[i]) : "";
    if (i == OFFSET)
        return cli_size_option(command, "-o offset", value, &cli_offset);
    if (i == UID)
        return take_id(command, "-o uid", value, &o->uid, &o->override_uid);
    if (i == GID)
        return take_id(command, "-o gid", value, &o->gid, &o->override_gid);
    if (*value)
        *(i == FSNAME ? &o->fsname : &o->subdir) = value;
    else if (take_flag_word(word, o) < 0)
        return refuse_word(command, word);
    return 0;
}

static int take_fuse_words(const struct cli_command *command, void *ctx, const char *text)
{
    char *list = (char *)text; /* an argument of main, which may be cut into words */
    int r = 0;
    for (char *word; r == 0 && (word = strsep(&list, ","));)
        if (*word)
            r = take_fuse_word(command, word, ctx);
    return r;
}

static int mount_take_owner(const struct cli_command *command, void *ctx, const char *text)
{
    struct mount_options *o = ctx;
    uint64_t pid = 0;
    if (strcmp(text, "none") == 0) {
        o->owner = MOUNT_NO_OWNER;
        return 0;
    }
    int r = cli_number_option(command, "--owner", text, 1, INT32_MAX, &pid);
    o->owner = (pid_t)pid;
    return r;
}

static int take_readahead(const struct cli_command *command, void *ctx, const char *text)
{
    struct mount_options *o = ctx;
    if (strcmp(text, "off") == 0)
        o->readahead_bytes = 0;
    else if (strcmp(text, "auto") == 0)
        o->readahead_bytes = UINT64_MAX;
    else if (size_parse(text, &o->readahead_bytes) < 0)
        return cli_usage_error(command,
                               "--readahead: '%s' is neither auto nor off nor a size (a number "
                               "with K, M, G or T)",
                               text);
    return 0;
}

static int take_expected(const struct cli_command *command, void *ctx, const char *text)
{
    size_t len = strspn(text, "0123456789abcdefABCDEF");
    if (text[len] || len < 8 || len > 2 * (size_t)INDEX_DIGEST_BYTES)
        return cli_usage_error(command,
                               "--expect: '%s' is no digest: 32 hexadecimal digits, or the "
                               "first 8 or more of them; 'onepot info --digest' prints it",
                               text);
    ((struct mount_options *)ctx)->expect = text;
    return 0;
}

static const char *const private_words[] = {
    [PRIVATE_AUTO] = "auto", [PRIVATE_ON] = "on", [PRIVATE_OFF] = "off", NULL};
static const char *const intercept_words[] = {
    [INTERCEPT_AUTO] = "auto", [INTERCEPT_ON] = "on", [INTERCEPT_OFF] = "off", NULL};

/* Read the options into *o: CLI_GO_ON or the exit status. */
static int parse_table(const struct cli_command *command, bool for_run, int argc, char **argv,
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
        {"--writable[=DIR]",
         for_run
             ? "let COMMAND write: to memory, which is gone at its end, or to DIR, where the "
               "next run finds it"
             : "let it be written to: to memory, which is gone at its end, or to DIR, where "
               "the next mount finds it",
         .flag = &o->writable, .text = &o->writable_dir},
        {"--extract[=DIR]",
         for_run
             ? "mount nothing: extract it for COMMAND, to memory or to a folder of its own in "
               "DIR, and remove the files at the end"
             : "mount nothing: extract it, to memory or to a folder of its own in DIR, until "
               "it is unmounted",
         .flag = &o->extract, .text = &o->extract_dir},
        {"--intercept=WHEN",
         !mounter_has_library ? NULL
         : for_run ? "auto, on, off: COMMAND reads by a preloaded library, without the mount "
                     "(default auto)"
                   : "auto, on, off: --export preloads a library that reads without the mount "
                     "(default auto)",
         .word = &o->intercept, .words = intercept_words},
        {"--export",
         for_run ? NULL
                 : "print commands for a shell, to be used so: eval \"$(onepot mount --export "
                   "ARCHIVE)\"",
         .flag = &o->export},
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
         "last mount removes the copy; =job: another step of the job copies it",
         .flag = &o->stage, .text = &o->stage_place},
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
        {"--expect=DIGEST", "refuse other data than those of this digest",
         .take = take_expected, .ctx = o},
        {"--allow-other", "let other users in, by the permissions of the files",
         .flag = &o->allow_other},
        {"--uid=ID", "show every file as owned by this user", .flag = &o->override_uid,
         .count = &o->uid, .max = UINT32_MAX - 1},
        {"--gid=ID", "show every file as owned by this group", .flag = &o->override_gid,
         .count = &o->gid, .max = UINT32_MAX - 1},
        {"--log=FILE", "append what happens to FILE", .text = &o->log},
        {"-o OPTION[,...]",
         "noexec, nonempty, default_permissions, allow_other, uid=ID, gid=ID, subdir=PATH, "
         "fsname=NAME, offset=BYTES",
         .take = take_fuse_words, .ctx = o},
        CLI_VIEW,
        CLI_PROGRESS,
        CLI_MAX_RATIO,
        CLI_NESTED,
        CLI_OFFSET,
        CLI_IGNORE_ZEROS,
        CLI_PLAIN,
        {NULL},
    };
    return cli_parse(command, options, argc, argv);
}

/* ---- words that are no options ---- */

static void take_words(struct mount_options *o, int argc, char **argv)
{
    o->archives = argv + optind;
    o->archive_count = (size_t)(argc - optind);
}

/* Is an archive mounted there? The mount itself is not asked. */
static bool is_onepot_mount(const char *word)
{
    struct mount_entry entry;
    char path[PATH_MAX];

    return *word && mountinfo_resolve(word, path) == 0 && mountinfo_find(path, &entry) == 0 &&
           entry.is_onepot;
}

/* Can a word that stands behind archives only mean the directory to mount at? */
static bool is_mountpoint(const char *word, bool nonempty)
{
    struct archive_list list = {0};
    struct fault fault = {0};
    struct stat st;

    if (strncmp(word, "/dev/fd/", 8) == 0 || is_onepot_mount(word))
        return true;
    if (stat(word, &st) < 0)
        return errno == ENOTCONN; /* of another program that was killed */
    if (!S_ISDIR(st.st_mode))
        return false;
    bool is_empty = archive_list_add(&list, word, &fault) == -ENOENT;
    archive_list_free(&list);
    return nonempty || is_empty;
}

/* The last word is no mount point. Was it meant as one? */
static struct cli_doubt doubt_about(char *const *last)
{
    struct stat st;
    if (stat(*last, &st) < 0 && errno == ENOENT)
        return (struct cli_doubt){last, 1, -ENOENT,
                                  "if it is the directory to mount at, make it first, or write "
                                  "--at before it: then onepot makes it"};
    if (stat(*last, &st) == 0 && S_ISDIR(st.st_mode))
        return (struct cli_doubt){last, 1, 0,
                                  "the folder is taken for one of archives, as it holds files; "
                                  "if it is where to mount, empty it, or add -o nonempty"};
    return (struct cli_doubt){NULL};
}

/*
 * Read a byte of the first archive that each word stands for. Nothing is read of a pipe, which
 * gives its bytes once, nor of a mount of onepot, whose daemon may be stopped.
 */
static int read_bytes(void *ctx)
{
    const struct mount_options *o = ctx;
    struct fault fault = {0};
    struct stat st;
    char byte;

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    syscall_close_range(STDIN_FILENO, STDERR_FILENO); /* nobody waits for their end */
    for (size_t i = 0; i < o->archive_count; i++) {
        const char *word = o->archives[i];
        struct archive_list list = {0};

        if (is_onepot_mount(word) ||
            (*word == '@' && (stat(word + 1, &st) < 0 || !S_ISREG(st.st_mode))))
            continue;
        int r = archive_list_add(&list, word, &fault);
        auto_close int fd =
            r < 0 || list.count == 0
                ? -1
                : open(list.at[0], O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
        if (fd >= 0 && fstat(fd, &st) == 0 && S_ISREG(st.st_mode)) {
            posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM); /* else megabytes come along */
            (void)!pread(fd, &byte, 1, 0);
        }
        archive_list_free(&list);
    }
    return 0;
}

/*
 * Is it a file in memory, or an empty folder there, as a mount point is? A filesystem may hang,
 * so it is asked nothing before its type is known. What a disk's device lies on can't be told.
 * `known_fd` is one that was found so, or -1: others of its mount need no list of mounts.
 */
static bool is_in_memory(const char *word, int *known_fd)
{
    auto_close int fd = *word == '@' ? -1 : syscall_open_known(word); /* @: a list of words */
    struct mount_entry mount;
    struct stat st;

    int r = fd < 0 ? fd : mountinfo_of(fd, *known_fd, &mount);
    bool is_memory =
        r == 1 ||
        (r == 0 && (strcmp(mount.type, "tmpfs") == 0 || strcmp(mount.type, "ramfs") == 0));
    if (!is_memory || fstat(fd, &st) < 0)
        return false;
    auto_closedir DIR *dir = S_ISDIR(st.st_mode) ? path_list(fd) : NULL;
    bool is_empty = dir != NULL;
    for (const struct dirent *e; is_empty && (e = readdir(dir));)
        is_empty = path_is_dots(e->d_name);
    if (*known_fd < 0)
        *known_fd = steal_fd(&fd);
    return S_ISREG(st.st_mode) || is_empty;
}

/*
 * Does the storage of the archives answer? A child asks, since some filesystems don't let even
 * a killed process go before they answer.
 */
static int check_storage(const struct mount_options *o, int failed)
{
    const uint64_t limit_ms = o->io_timeout_s ? o->io_timeout_s * UINT64_C(1000) : INT_MAX;
    char name[CLI_NAME_LEN];
    auto_close int known_fd = -1;
    size_t near = 0;

    while (near < o->archive_count && is_in_memory(o->archives[near], &known_fd))
        near++;
    if (near == o->archive_count)
        return CLI_GO_ON;
    if (process_try(read_bytes, (void *)o, (int)min_u64(limit_ms, INT_MAX)) != -ETIMEDOUT)
        return CLI_GO_ON;
    cli_failf(cli_name_of(o->archives, o->archive_count, name),
              "its storage has not answered for %u s; try again, or wait longer with "
              "--io-timeout",
              o->io_timeout_s);
    return failed;
}

static void take_mountpoint(struct mount_options *o, bool for_run)
{
    struct stat st;
    if (o->archive_count == 1 && !cli_plain && stat(o->archives[0], &st) == 0 &&
        S_ISDIR(st.st_mode))
        o->doubt = (struct cli_doubt){o->archives, 1, -ENOMSG,
                                      "--plain shows the files of a folder as they are"};
    if (for_run || o->at || o->archive_count < 2)
        return;
    const char *last = o->archives[o->archive_count - 1];
    o->at_is_last = is_mountpoint(last, o->nonempty);
    if (!o->at_is_last)
        o->doubt = doubt_about(&o->archives[o->archive_count - 1]);
    if (o->at_is_last)
        o->at = o->archives[--o->archive_count];
}

static void give(const struct mount_options *o, struct mount_options *ret_options)
{
    *ret_options = *o;
    ret_options->archive =
        cli_name_of(o->archives, o->archive_count, ret_options->archive_name);
    const char *said = o->stage_place ? o->stage_place : job_variable("ONEPOT_STAGE");
    ret_options->stage_in_job = o->stage && said && strcmp(said, "job") == 0;
    if (ret_options->stage_in_job)
        ret_options->stage_place = NULL;
}

/* Is it root, and of the node? */
static bool has_all_rights(void)
{
    uint64_t rights = 0;
    process_status_number(getpid(), "\nCapEff:", 16, &rights);
    return geteuid() == 0 && rights >> CAP_SYS_ADMIN & 1 && place_knows_all_users();
}

/* In a user namespace only files of its user can be changed, so all files are. */
static void own_all_files(struct mount_options *o)
{
    if (!o->writable || has_all_rights())
        return;
    o->override_uid = o->override_gid = true;
    o->uid = geteuid();
    o->gid = getegid();
}

/* Plain files have no daemon that could do what these want. */
static const char *not_for_files(const struct mount_options *o)
{
    const struct {
        const char *option;
        bool is_given;
    } all[] = {{"--at", o->at},
               {"-f", o->foreground},
               {"--private", o->private_mode != PRIVATE_AUTO},
               {"--writable", o->writable},
               {"--intercept", o->intercept == INTERCEPT_ON},
               {"--stage", o->stage},
               {"--cache", o->cache_given},
               {"--readahead", o->readahead_bytes != UINT64_MAX},
               {"--order", o->order},
               {"--record", o->record},
               {"--idle", o->idle_s},
               {"--grace", o->grace_s},
               {"--allow-other", o->allow_other},
               {"-o noexec", o->noexec},
               {"-o default_permissions", o->default_permissions},
               {"--uid", o->override_uid},
               {"--gid", o->override_gid}};

    for (size_t i = 0; o->extract && i < sizeof(all) / sizeof(all[0]); i++)
        if (all[i].is_given)
            return all[i].option;
    return NULL;
}

/* Checks that involve more than one option. */
static int check_together(const struct cli_command *command, bool for_run,
                          const struct mount_options *o)
{
    if (o->archive_count == 0)
        return cli_usage_error(command, "no archive was named");
    for (size_t i = 0; i < o->archive_count; i++)
        if (!*o->archives[i])
            return cli_usage_error(command,
                                   "the archive's name is empty: a variable that is not set?");
    const char *other = not_for_files(o);
    if (other)
        return cli_usage_error(
            command,
            "%s is for mounts, and --extract makes plain files, which may be "
            "written to; {} and $ONEPOT_MOUNT name their directory",
            other);
    if (cli_plain && (o->archive_count > 1 || cli_together.each))
        return cli_usage_error(command, "--plain shows one folder");
    if (for_run && o->foreground)
        return cli_usage_error(command,
                               "there is no -f here: 'run' always waits for its command");
    if (!for_run && o->private_mode == PRIVATE_ON)
        return cli_usage_error(command,
                               "--private=on needs a command to be private to: 'onepot "
                               "run' has one");
    if (o->writable && o->private_mode == PRIVATE_OFF)
        return cli_usage_error(command,
                               "--writable needs a namespace, which --private=off forbids");
    if (o->writable && (o->override_uid || o->override_gid) && !has_all_rights())
        return cli_usage_error(command,
                               "--uid and --gid go with --writable for root alone: nobody "
                               "else may change another user's file");
    if (o->export && o->foreground)
        return cli_usage_error(command, "--export and -f don't go together: the shell waits");
    if (o->allow_other && !o->at)
        return cli_usage_error(command,
                               "--allow-other needs --at DIR: the directory that onepot "
                               "chooses is closed to other users");
    return CLI_GO_ON;
}

/* Read the view's files now, before a daemon has another standard input. */
static int read_view(char ret_view[RECIPE_NAME_LEN + 1])
{
    const struct fileset_compose *compose;
    struct recipe recipe = {0};
    if (cli_compose(&compose) < 0)
        return CLI_FAILED;
    if (!compose || !compose->view)
        return CLI_GO_ON;
    view_describe(compose->view, &recipe);
    recipe_name(&recipe, ret_view);
    vector_free(&recipe.bytes);
    return recipe.err < 0 ? cli_fail(NULL, recipe.err, NULL) : CLI_GO_ON;
}

int mount_options_parse(const struct cli_command *command, bool for_run, int argc, char **argv,
                        struct mount_options *ret_options)
{
    struct mount_options o = DEFAULTS;
    int status = parse_table(command, for_run, argc, argv, &o);

    take_words(&o, argc, argv);
    if (status == CLI_GO_ON)
        status = check_storage(&o, for_run ? CLI_RUN_FAILED : CLI_FAILED);
    if (status == CLI_GO_ON)
        take_mountpoint(&o, for_run);
    if (status == CLI_GO_ON)
        status = check_together(command, for_run, &o);
    if (status == CLI_GO_ON)
        status = read_view(o.view);
    if (status != CLI_GO_ON)
        return status;
    o.default_permissions |= o.allow_other;
    own_all_files(&o);
    give(&o, ret_options);
    return CLI_GO_ON;
}

/* ---- squashfuse ---- */

/* The kernel's part of these is decided here; libfuse's threads and times do not exist. */
static bool is_for_libfuse(const char *word)
{
    static const char *const words[] = {"suid",
                                        "dev",
                                        "rw",
                                        "allow_root",
                                        "auto_unmount",
                                        "auto_cache",
                                        "max_read=",
                                        "max_threads=",
                                        "max_idle_threads=",
                                        "entry_timeout=",
                                        "attr_timeout=",
                                        "negative_timeout=",
                                        "subtype=",
                                        "max_background="};
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        size_t len = strlen(words[i]);
        if (words[i][len - 1] == '=' ? strncmp(word, words[i], len) == 0
                                     : strcmp(word, words[i]) == 0)
            return true;
    }
    return false;
}

static int take_squashfuse_words(const struct cli_command *command, void *ctx, const char *text)
{
    struct mount_options *o = ctx;
    char *list = (char *)text;
    uint64_t seconds;
    int r = 0;
    for (char *word; r == 0 && (word = strsep(&list, ","));) {
        if (!*word || is_for_libfuse(word))
            continue;
        if (strncmp(word, "notify_pipe=", 12) == 0) {
            o->notify_pipe = word + 12;
        } else if (strncmp(word, "timeout=", 8) == 0) {
            r = cli_number_option(command, "-o timeout", word + 8, 0, SECONDS_MAX, &seconds);
            o->idle_s = r == 0 ? (unsigned)seconds : 0;
        } else {
            r = take_fuse_word(command, word, o);
        }
    }
    return r;
}

int mount_options_squashfuse(const struct cli_command *command, int argc, char **argv,
                             struct mount_options *ret_options)
{
    struct mount_options o = DEFAULTS;
    bool ignored;
    const struct cli_option options[] = {
        {"-f, --foreground", "serve it in this process, until it is unmounted",
         .flag = &o.foreground},
        {"-s", "taken, without effect: the threads are those of the job's CPUs",
         .flag = &ignored},
        {"-d", "the same as -f", .flag = &o.foreground},
        {"-o OPTION[,...]",
         "uid=ID, gid=ID, offset=BYTES, subdir=PATH, timeout=SECONDS, notify_pipe=FIFO, "
         "allow_other, ro, and what 'onepot mount' takes",
         .take = take_squashfuse_words, .ctx = &o},
        {NULL},
    };
    int status = cli_parse(command, options, argc, argv);

    if (status != CLI_GO_ON)
        return status;
    take_words(&o, argc, argv);
    if (o.archive_count != 2)
        return cli_usage_error(command, "an image and a mount point are needed");
    o.at = o.archives[--o.archive_count];
    o.at_is_last = o.nonempty = true;
    o.ends_at_once = true;
    o.owner = MOUNT_NO_OWNER;
    /* Without check_storage: starters of containers want the mount before its image answers. */
    status = check_together(command, false, &o);
    if (status == CLI_GO_ON)
        give(&o, ret_options);
    return status;
}

uint64_t mount_options_hash(const struct mount_options *o, const char *at, int64_t mtime_sec,
                            long mtime_nsec, uint64_t owner_start_ticks)
{
    auto_free char *text = NULL;
    const struct fileset_compose none = {0}, *compose;
    cli_compose(&compose);
    compose = compose ? compose : &none;
    int n = asprintf(
        &text,
        "%s\n%s\n%s\n%s\n%s\n%s\n%s\n%s\n%" PRIu64
        " %d%s\n%d%s\n%d%d%d%d%d%d%d%d %d%d%d%d %" PRIu32 " %" PRIu32 " %u %u %u %u %u %" PRIu64
        " %" PRIu64 " %d %" PRIu64 " %" PRIi64 " %ld %" PRIu64 " %d%d%s\n%d%s",
        at ? at : "", o->subdir ? o->subdir : "", o->log ? o->log : "",
        o->fsname ? o->fsname : "", o->order ? o->order : "", o->record ? o->record : "",
        o->view, o->expect ? o->expect : "", o->seed, o->stage,
        o->stage_place ? o->stage_place : "", o->writable,
        o->writable_dir ? o->writable_dir : "", o->foreground, o->allow_other,
        o->default_permissions, o->noexec, o->override_uid, o->override_gid, o->cache_given,
        o->nonempty, cli_together.each, (int)cli_together.on_conflict,
        cli_together.skip_damaged, cli_plain, o->uid, o->gid, o->threads, o->idle_s, o->grace_s,
        o->io_timeout_s, o->retries, o->cache_bytes, o->readahead_bytes, (int)o->owner,
        owner_start_ticks, mtime_sec, mtime_nsec, cli_offset, cli_ignores_zeros,
        compose->nested, compose->nested_glob ? compose->nested_glob : "", o->extract,
        o->extract_dir ? o->extract_dir : "");
    if (n < 0) {
        text = NULL;
        return 0;
    }
    return XXH3_64bits_withSeed(text, (size_t)n, o->verify);
}
