/*
 * The steps of covering are noted before they are made, so that a process that is killed in
 * between leaves nothing that is not found.
 */
#include "layer_cover.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "cleanup.h"
#include "cli.h"
#include "clock.h"
#include "fault.h"
#include "layer_program.h"
#include "mountinfo.h"
#include "mountpoint.h"
#include "place.h"
#include "process.h"
#include "remove_tree.h"
#include "state.h"

#define FOLDER_PREFIX ".layer-" /* no slot's name begins with a dot */
#define FOLDER_MAX (STATE_NAME_MAX + 8)

/* ---- what lies on top ---- */

static bool is_noted(const struct counters *c)
{
    uint32_t state = atomic_load(&c->layer);
    return state == LAYER_COMES || state == LAYER_LIES;
}

static bool is_mount_itself(const struct counters *c, const struct mount_entry *entry)
{
    return entry->dev_major == c->mount_dev_major && entry->dev_minor == c->mount_dev_minor;
}

static bool is_of_program(const struct counters *c, const struct mount_entry *entry)
{
    bool is_device =
        entry->dev_major == c->layer_dev_major && entry->dev_minor == c->layer_dev_minor;

    return strcmp(entry->type, "fuse." LAYER_PROGRAM) == 0 &&
           (entry->uid == geteuid() || entry->uid == place_uid()) &&
           (is_device || atomic_load(&c->layer) == LAYER_COMES);
}

static bool is_tmpfs(const struct mount_entry *entry)
{
    return strcmp(entry->type, "tmpfs") == 0;
}

static bool is_of_layer(const struct counters *c, const struct mount_entry *entry)
{
    if (c->layer_by_program)
        return is_of_program(c, entry);
    return (is_tmpfs(entry) || strcmp(entry->type, "overlay") == 0) &&
           layer_is_named(entry->source, c->layer_token);
}

/* 0 and the topmost part; -ENOENT: it is off; -EBUSY: something else lies on top. */
static int find_top(const struct slot *slot, struct mount_entry *ret_top)
{
    const struct counters *c = slot->counters;

    if (!is_noted(c) || c->private_namespace || !slot_is_mounted(slot))
        return -ENOENT;
    int r = mountinfo_find(c->mountpoint, ret_top);
    if (r < 0 || is_mount_itself(c, ret_top))
        return r < 0 ? r : -ENOENT;
    if (is_of_layer(c, ret_top))
        return 0;
    bool is_off = c->layer_below[0] &&
                  !mountinfo_has(c->mountpoint, c->layer_dev_major, c->layer_dev_minor);
    return is_off ? -ENOENT : -EBUSY;
}

bool layer_is_on_top(const struct slot *slot)
{
    struct mount_entry top;
    return find_top(slot, &top) == 0;
}

bool layer_is_lost(const struct slot *slot)
{
    struct mount_entry top;

    if (atomic_load(&slot->counters->layer) != LAYER_LIES)
        return false;
    int r = find_top(slot, &top);
    return r == -ENOENT || (r == 0 && is_tmpfs(&top));
}

/* ---- how much was written ---- */

static void folder_name(const struct slot *slot, char ret_name[FOLDER_MAX])
{
    snprintf(ret_name, FOLDER_MAX, FOLDER_PREFIX "%s", slot->name);
}

/* False: its path is too long, and there is none. */
static bool folder_path(const struct slot *slot, char ret_path[PATH_MAX])
{
    char name[FOLDER_MAX];
    folder_name(slot, name);
    return snprintf(ret_path, PATH_MAX, "%s/%s", slot->folder, name) < PATH_MAX;
}

/* Count a tmpfs layer's bytes. By a descriptor: a filesystem mounted since is asked nothing. */
static void measure_tmpfs(struct counters *c)
{
    auto_close int fd = open(c->mountpoint, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    struct mount_entry entry;
    struct statfs st;

    if (fd >= 0 && mountinfo_of(fd, &entry) == 0 && is_tmpfs(&entry) &&
        is_of_layer(c, &entry) && fstatfs(fd, &st) == 0)
        atomic_store(&c->layer_bytes,
                     (uint64_t)(st.f_blocks - st.f_bfree) * (uint64_t)st.f_bsize);
}

void layer_gone(const struct slot *slot)
{
    struct counters *c = slot->counters;
    struct layer layer = LAYER_NONE;
    uint64_t bytes;

    if (c->layer_dir[0])
        snprintf(layer.dir, sizeof(layer.dir), "%s", c->layer_dir);
    if (c->layer_dir[0] || (c->layer_by_program && folder_path(slot, layer.dir))) {
        c->layer_is_more = layer_measure(&layer, &bytes);
        atomic_store(&c->layer_bytes, bytes);
    }
    atomic_store(&c->layer, LAYER_GONE);
}

bool layer_is_changed(const struct slot *slot)
{
    struct counters *c = slot->counters;
    struct layer layer = LAYER_NONE;
    struct statfs st;

    snprintf(layer.dir, sizeof(layer.dir), "%s", c->layer_dir);
    if (c->layer_dir[0] || (c->layer_by_program && folder_path(slot, layer.dir)))
        return layer_has_changes(&layer);
    if (!c->private_namespace && statfs(c->mountpoint, &st) == 0) /* an overlay's, in memory */
        atomic_store(&c->layer_files, (uint64_t)(st.f_files - st.f_ffree));
    return atomic_load(&c->layer_files) > atomic_load(&c->layer_files_before);
}

const char *layer_told(const struct counters *c, char buf[LAYER_TOLD_MAX])
{
    const uint64_t bytes = atomic_load(&c->layer_bytes);
    const char *more = c->layer_is_more ? "more than " : "";

    if (atomic_load(&c->layer) != LAYER_GONE || (!c->layer_dir[0] && !bytes))
        return NULL;
    if (c->layer_dir[0])
        snprintf(buf, LAYER_TOLD_MAX, "%s%s of changes lie in %s, for the next --writable=DIR",
                 more, cli_bytes(bytes), c->layer_dir);
    else
        snprintf(buf, LAYER_TOLD_MAX,
                 "%s%s of changes lay in memory, and are gone (--writable=DIR keeps them)",
                 more, cli_bytes(bytes));
    return buf;
}

void layer_note(const struct counters *c, const char *name)
{
    char text[LAYER_TOLD_MAX];
    const char *told = layer_told(c, text);

    if (told)
        cli_note("%s: %s", name, told);
}

/* ---- off ---- */

int layer_uncover(const struct slot *slot, bool lazy)
{
    struct counters *c = slot->counters;
    struct mount_entry top;
    bool is_begun = false;
    int r;

    if (!is_noted(c))
        return 0;
    while ((r = find_top(slot, &top)) == 0) {
        if (is_tmpfs(&top))
            measure_tmpfs(c);
        /* Nobody but the layer used what lies below the topmost mount: unmount that lazily. */
        r = mountpoint_unmount(c->mountpoint, lazy || is_begun || is_tmpfs(&top));
        if (r < 0)
            return r;
        is_begun = true;
    }
    if (r != -ENOENT)
        return r;
    layer_gone(slot);
    return 1;
}

void layer_forget(const struct slot *slot)
{
    char path[PATH_MAX];

    if (slot->counters->layer_has_folder && folder_path(slot, path))
        remove_tree(AT_FDCWD, path, UINT64_MAX);
}

/* ---- on ---- */

/* Cover the mount by the kernel's overlayfs. */
static int cover_by_kernel(struct counters *c, struct layer *layer,
                           const struct mount_request *rq)
{
    c->layer_token = layer->token = now_ns();
    layer->below = makedev(c->mount_dev_major, c->mount_dev_minor);
    atomic_store(&c->layer, LAYER_COMES);
    return layer_mount(layer, rq->mountpoint, rq->noexec);
}

/* The slot's folder for the layer. Whoever makes it keeps others from sweeping it empty. */
static int make_folder(struct slot *slot)
{
    char name[FOLDER_MAX], path[PATH_MAX];

    folder_name(slot, name);
    if (!folder_path(slot, path))
        return -ENAMETOOLONG;
    slot->counters->layer_has_folder = 1;
    layer_forget(slot);
    return mkdirat(slot->folder_fd, name, 0700) < 0 ? -errno : 0;
}

int layer_make_below(struct slot *slot)
{
    struct counters *c = slot->counters;
    char path[PATH_MAX];
    int r = make_folder(slot);

    if (r < 0 || !folder_path(slot, path))
        return r;
    if (snprintf(c->layer_below, sizeof(c->layer_below), "%.*s/below", PATH_MAX - 8, path) <
            0 ||
        mkdir(c->layer_below, 0700) < 0) {
        r = -errno;
        c->layer_below[0] = '\0';
    }
    return r;
}

/* The slot's folder, with the registry's lock until something lies in it. */
static int find_memory(struct slot *slot, struct registry *registry, struct layer *ret_layer)
{
    bool is_new = !slot->counters->layer_has_folder;
    struct stat st;
    int r = is_new ? slots_lock_of(slot, registry) : 0;

    if (r == 0 && is_new)
        r = make_folder(slot);
    if (r < 0)
        return r;
    if (!folder_path(slot, ret_layer->dir) || lstat(ret_layer->dir, &st) < 0)
        return -errno;
    ret_layer->id = file_id_of(&st);
    return 0;
}

static int open_folders(struct slot *slot, const struct layer *layer, int ret_fds[2])
{
    auto_registry registry = REGISTRY_NONE;
    struct layer memory = LAYER_NONE;
    int r = 0;

    memory.is_open = layer->is_open;
    if (!layer->dir[0])
        r = find_memory(slot, &registry, &memory);
    return r < 0 ? r
                 : layer_open_for_program(layer->dir[0] ? layer : &memory,
                                          slot_mount_path(slot), ret_fds);
}

static int run_program(const char *program, const struct layer *layer, struct slot *slot,
                       const struct mount_request *rq, char why[LAYER_WHY_MAX])
{
    const struct counters *c = slot->counters;
    auto_close int lower = -1, changes = -1, work = -1;
    struct stat st;
    int fds[2];

    lower = open(rq->mountpoint, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (lower < 0 || fstat(lower, &st) < 0)
        return layer_refuse(why, -errno, NULL);
    if (st.st_dev != makedev(c->mount_dev_major, c->mount_dev_minor))
        return layer_refuse(why, -EXDEV, NULL);
    int r = open_folders(slot, layer, fds);
    if (r < 0)
        return layer_refuse(why, r,
                            r == -EMEDIUMTYPE
                                ? "the kernel's overlayfs wrote it ('onepot run', or "
                                  "root); take another folder"
                                : NULL);
    changes = fds[0];
    work = fds[1];
    const struct layer_program start = {.program = program,
                                        .mountpoint = c->mountpoint,
                                        .lower = lower,
                                        .changes = changes,
                                        .work = work,
                                        .noexec = rq->noexec,
                                        .allow_other = rq->allow_other};
    return layer_program_start(&start, why);
}

static int cover_by_program(struct slot *slot, const struct layer *layer,
                            const struct mount_request *rq, char why[LAYER_WHY_MAX])
{
    struct counters *c = slot->counters;
    char program[PATH_MAX];

    if (process_find_program(LAYER_PROGRAM, program) < 0)
        return layer_refuse(why, -ENOENT,
                            LAYER_PROGRAM " is not in $PATH, which an ordinary user needs for "
                                          "it; 'onepot run --writable ARCHIVE -- COMMAND' does "
                                          "without");
    c->layer_by_program = 1;
    atomic_store(&c->layer, LAYER_COMES);
    return run_program(program, layer, slot, rq, why);
}

/* Note its device: the layer is on top, and answers. */
static int note_layer(struct slot *slot, char why[LAYER_WHY_MAX])
{
    struct counters *c = slot->counters;
    struct mount_entry top;
    int r = find_top(slot, &top);

    if (r < 0)
        return layer_refuse(why, r, "what was mounted is not there");
    c->layer_dev_major = top.dev_major;
    c->layer_dev_minor = top.dev_minor;
    atomic_store(&c->layer, LAYER_LIES);
    return 0;
}

int layer_cover(struct slot *slot, struct layer *layer, const struct mount_request *rq,
                bool by_kernel, char why[LAYER_WHY_MAX])
{
    struct counters *c = slot->counters;
    int r = -EPERM;

    if (by_kernel) {
        r = cover_by_kernel(c, layer, rq);
        if (r < 0)
            layer_refuse(why, r, r == -EMEDIUMTYPE ? LAYER_OF_PROGRAM : NULL);
    }
    if (!by_kernel || r == -EPERM || r == -ENODEV) {
        layer_uncover(slot, true);
        r = cover_by_program(slot, layer, rq, why);
    }
    return r < 0 ? r : note_layer(slot, why);
}
