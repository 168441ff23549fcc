/*
 * The request: the options' paths and names, resolved before anything is opened or mounted; and
 * the signals that may end the command meanwhile.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cleanup.h"
#include "interrupt.h"
#include "mounter_private.h"
#include "mountinfo.h"
#include "owner.h"
#include "path.h"
#include "place.h"

/* ---- signals while it works ---- */

int mounter_caught(void)
{
    return atomic_load(interrupt_flag());
}

/* Blocking calls return on a signal, and the command cleans up. */
static void catch_signals(void)
{
    interrupt_handle(interrupt_note);
    signal(SIGCHLD, SIG_DFL); /* if ignored, our children's exit status would be lost */
}

/* ---- resolving the request ---- */

int mounter_init(struct mounter *m, const struct mount_options *options, bool for_run)
{
    *m = (struct mounter){
        .options = options,
        .for_run = for_run,
        .mounted = MOUNTED_NONE,
        .owner = PROCESS_WATCH_NONE,
        .log = {.fd = -1, .stderr_too = options->foreground},
        .layer = LAYER_NONE,
        .parent_fd = -1,
        .daemon_sock = -1,
        .daemon_lock_fd = -1,
    };
    catch_signals();
    return detach_note_inherited(&m->inherited);
}

static int identify(const struct mounter *m, size_t i, struct source_identity *ret_identity)
{
    const char *path = m->archives.at[i];
    struct fault fault = {0};
    const struct pot_options options = {.is_whole = archive_list_is_whole(&m->archives, i),
                                        .is_plain = m->archives.is_plain};
    int r = pot_identify(path, &options, &fault, ret_identity);
    if (r == 0)
        return 0;
    cli_advise(&m->options->doubt, path, &fault);
    return cli_fail(path, r, &fault);
}

static int identify_files(struct mounter *m)
{
    const struct archive_list *list = &m->archives;
    auto_free struct source_identity *all = calloc(list->count, sizeof(*all));
    struct stat st;
    int r = 0;
    if (!all)
        return cli_fail(NULL, -ENOMEM, NULL);
    for (size_t i = 0; r == 0 && i < list->count; i++)
        if (!cli_together.skip_damaged || stat(list->at[i], &st) == 0)
            r = identify(m, i, &all[i]);
    source_identity_join(all, list->count, &m->identity);
    snprintf(m->archive, sizeof(m->archive), "%s", m->options->archive);
    return r;
}

/*
 * The name of one archive, and its identity. A descriptor of the caller (/proc/self/fd/3) may
 * be of a file that has no path, or another one by now.
 */
static int identify_archive(struct mounter *m)
{
    const char *given = m->archives.at[0];
    struct stat st, own;
    int r = identify(m, 0, &m->identity);

    if (r == 0 && (!realpath(given, m->archive) || stat(m->archive, &st) < 0 ||
                   stat(given, &own) < 0 || st.st_dev != own.st_dev || st.st_ino != own.st_ino))
        snprintf(m->archive, sizeof(m->archive), "%s", given);
    return r;
}

static int identify_archives(struct mounter *m)
{
    const struct mount_options *o = m->options;
    int r = cli_list_archives(o->archives, o->archive_count, &m->archives) < 0 ? CLI_FAILED : 0;
    if (r == 0 && mounter_is_union(m))
        r = identify_files(m);
    else if (r == 0)
        r = identify_archive(m);
    cli_expect_archives(m->archives.count);
    return r;
}

/* May this user make the directory, with all parents that it lacks? */
static bool may_be_made(const char *at)
{
    char folder[PATH_MAX];
    snprintf(folder, sizeof(folder), "%s", at);
    while (access(folder, F_OK) < 0 && errno == ENOENT) {
        char *slash = strrchr(folder, '/');
        if (!slash)
            strcpy(folder, ".");
        else
            slash[slash == folder] = '\0';
    }
    return access(folder, W_OK) == 0;
}

/*
 * Could another user put something else at --at? In a sticky folder it has to be ours, or
 * root's. A mount of onepot there is not asked for its owner: it may be dead, and is cleared.
 */
static int check_at(const char *at)
{
    char above[PATH_MAX], text[PATH_MAX + 256];
    const char *name = path_base(at);
    struct place_refusal refusal;
    struct mount_entry entry;
    struct place place;
    struct stat st;

    snprintf(above, sizeof(above), "%.*s", (int)(name - at), at);
    int r = place_open(above, PLACE_SHARED, &place, &refusal);
    if (r < 0 && r != -EPERM)
        return cli_fail(at, r, NULL);
    if (r < 0)
        return cli_failf(at, "another user could replace it: %s",
                         place_explain(&refusal, text, sizeof(text)));
    bool is_sticky = place.st.st_mode & (S_IWGRP | S_IWOTH);
    bool is_there = is_sticky && *name && mountinfo_find(at, &entry) < 0 &&
                    fstatat(place.fd, name, &st, AT_SYMLINK_NOFOLLOW) == 0;
    close(place.fd);
    if (is_there && st.st_uid != 0 && !place_is_ours(&st))
        return cli_failf(at, "another user could replace it: it belongs to user %u",
                         (unsigned)st.st_uid);
    return 0;
}

/* --at: a directory, or the device of a parent that has mounted. */
static int resolve_at(struct mounter *m)
{
    const char *at = m->options->at;
    int n = -1, fd;

    if (!at)
        return 0;
    if (sscanf(at, "/dev/fd/%d%n", &fd, &n) == 1 && n > 0 && !at[n]) {
        m->parent_fd = fcntl(fd, F_DUPFD_CLOEXEC, 3);
        if (m->parent_fd < 0)
            return cli_failf(at, "no such descriptor was handed over: %s", fault_errno(errno));
        m->methods = MOUNT_BY_PARENT;
        snprintf(m->at, sizeof(m->at), "%s", at);
        return 0;
    }
    int r = mountinfo_resolve(at, m->at);
    if (r == -EACCES || (r == -ENOENT && !may_be_made(at)))
        return mounter_refused(m, at, -EACCES);
    if (r == -EPERM)
        return cli_failf(at, "is another user's symbolic link in a directory where anybody may "
                             "make one; it is not followed");
    if (r == -ENOENT)
        return cli_failf(at, "its parent directory does not exist; make that first");
    return r < 0 ? cli_fail(at, r, NULL) : check_at(m->at);
}

/*
 * `run` shows the tree beside its changes, since programs know their caches by the path of the
 * data, and any other path has the job's number in it.
 */
static void choose_view(struct mounter *m)
{
    char text[PATH_MAX + 256];
    struct place_refusal refusal;
    struct place place;

    if (place_open(m->layer.dir, PLACE_SHARED, &place, &refusal) < 0) {
        cli_note("%s: others could replace it (%s), so the tree is shown elsewhere, at a path "
                 "that differs between jobs",
                 m->layer.dir, place_explain(&refusal, text, sizeof(text)));
        return;
    }
    close(place.fd);
    snprintf(m->view, sizeof(m->view), "%.*s/view", PATH_MAX - 8, m->layer.dir);
}

/* --writable: where its changes go. */
static int resolve_layer(struct mounter *m)
{
    const struct mount_options *o = m->options;
    char why[LAYER_WHY_MAX];

    if (!o->writable)
        return 0;
    if (m->parent_fd >= 0)
        return cli_failf(m->at, "--writable needs a mount of onepot's; name another --at");
    m->is_private = m->for_run;
    if (layer_resolve(o->writable_dir, &m->layer, why) < 0)
        return cli_failf(o->writable_dir, "what is written can't lie there: %s", why);
    m->layer.is_open = o->allow_other;
    if (m->for_run && m->layer.dir[0] && !m->at[0])
        choose_view(m);
    size_t len = strlen(m->at);
    if (len && strncmp(m->layer.dir, m->at, len) == 0 && m->layer.dir[len] == '/')
        return cli_failf(m->layer.dir, "the mount would hide it; name a folder outside of %s",
                         m->at);
    return 0;
}

/* --extract=DIR: a folder of our own in it, whatever else DIR holds. */
static int resolve_extract(struct mounter *m)
{
    const char *dir = m->options->extract_dir;
    char real[PATH_MAX];

    if (!dir)
        return 0;
    auto_close int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0 || !realpath(dir, real))
        return cli_fail(dir, -errno, NULL);
    if (!storage_of(fd).is_local)
        return cli_failf(dir,
                         "it is not on this node, where files are to be extracted to; name "
                         "another folder, or none: then they lie in memory");
    int n = snprintf(m->extract_folder, sizeof(m->extract_folder), "%s/onepot-%u",
                     strcmp(real, "/") ? real : "", place_uid());
    if (n + RUNTIME_NAME_MAX >= PATH_MAX)
        return cli_fail(dir, -ENAMETOOLONG, NULL);
    int r = state_remember(m->extract_folder);
    if (r == -EMLINK)
        return cli_failf(dir, "files were extracted to too many other folders of this node for "
                              "'onepot clean' to find one more; name one of those");
    return r < 0 ? cli_failf(dir, "'onepot clean' would not find it: %s", fault_errno(r)) : 0;
}

static int watch_owner(struct mounter *m)
{
    if (m->options->owner <= 0)
        return 0;
    int r = process_watch_open(m->options->owner, &m->owner);
    if (r < 0)
        return cli_failf(NULL, "--owner: there is no process %d", (int)m->options->owner);
    return 0;
}

static int open_log(struct mounter *m)
{
    const char *path = m->options->log;
    if (!path)
        return 0;
    m->log.fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOCTTY, 0666);
    return m->log.fd < 0 ? cli_failf(path, "the log can't be opened: %s", fault_errno(errno))
                         : 0;
}

/*
 * Outside of jobs a layer is its session's, as another terminal's commands know nothing of it,
 * and so are extracted files. A mount that nobody writes to is for all.
 */
static uint64_t session_of_layer(const struct mounter *m)
{
    struct process_facts leader = {0};

    if ((!m->options->writable && !m->options->extract) || m->job.id[0])
        return 0;
    pid_t pid = owner_find();
    pid = pid ? pid : getsid(0);
    process_look(pid, &leader);
    return leader.start_ticks << 32 ^ (uint64_t)pid;
}

int mounter_prepare(struct mounter *m)
{
    const struct mount_options *o = m->options;

    stage_sweep(NULL); /* leftovers of killed processes use the job's memory */
    if (mount_methods(&m->methods) < 0)
        return cli_failf(
            NULL, "ONEPOT_MOUNT_METHODS has an unknown word; mount, fusermount3, fusermount "
                  "and namespace are known");
    if (o->private_mode == PRIVATE_OFF)
        m->methods &= ~(unsigned)MOUNT_BY_NAMESPACE;
    m->is_private = o->private_mode == PRIVATE_ON;
    job_detect(&m->job);
    int r = identify_archives(m);
    if (r == 0)
        r = resolve_at(m);
    if (r == 0)
        r = resolve_layer(m);
    if (r == 0)
        r = resolve_extract(m);
    if (r == 0)
        r = watch_owner(m);
    if (r == 0)
        r = open_log(m);
    m->options_hash = mount_options_hash(o, m->at, m->identity.mtime_sec,
                                         m->identity.mtime_nsec, m->owner.start_ticks) ^
                      session_of_layer(m);
    return r;
}
