/*
 * --extract: plain files in the slot's own directory in place of a mount. Whoever may use a
 * mount may use them: the slot, its locks and its owners are the same. A daemon stays beside
 * them that serves nothing. It holds their share of the job's memory, and removes them when the
 * last who wanted them has ended.
 *
 * The index says what they will take, and that is compared with the room that there is
 * before the first byte is written. Others that extract at the same time are to find room for
 * the rest of theirs, so that the decision is made under the registry's lock.
 */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "budget.h"
#include "cleanup.h"
#include "clock.h"
#include "cpus.h"
#include "extract.h"
#include "interrupt.h"
#include "mounter_private.h"
#include "numbers.h"
#include "place.h"

#define INODE_BYTES 1024u /* of kernel memory for an inode and its name, in tmpfs */
#define SPARE_SHARE 16u   /* of the room stays free, */
#define SPARE_BYTES                                                                            \
    (UINT64_C(32) << 20) /* and of memory so much for the command to begin with */

/* ---- room ---- */

/* The room that files take, or that there is for them. */
struct amount {
    uint64_t bytes, inodes;
    bool is_memory;
    bool is_jobs; /* the job has no more memory, though the filesystem may have room */
};

static void add_node(const struct mounter *m, const struct node *node, uint32_t position,
                     uint64_t page, struct amount *sum)
{
    /* Outside of a part of the tree the first of several names may be missing. */
    if (node->position != position && m->root == INDEX_ROOT)
        return;
    sum->inodes++;
    sum->bytes += INODE_BYTES;
    if (S_ISREG(node->mode))
        sum->bytes += (node->data_bytes + page - 1) / page * page;
}

/*
 * All below the root that is shown. The index is in breadth-first order: what lies in one range
 * of entries lies in one range, too.
 */
static int measure_tree(const struct mounter *m, struct amount *ret_need)
{
    const struct index *index = m->pot->index;
    const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    uint64_t first = m->root, end = first + 1;
    struct amount sum = {0};
    int r = 0;

    while (r == 0 && first < end) {
        uint64_t next = UINT32_MAX, next_end = 0;
        for (uint64_t at = first; r == 0 && at < end; at++) {
            struct node node;
            uint32_t child, count = 0;
            r = index_node(index, (uint32_t)at, &node);
            if (r == 0)
                add_node(m, &node, (uint32_t)at, page, &sum);
            if (r == 0 && S_ISDIR(node.mode))
                r = index_children(index, (uint32_t)at, &child, &count);
            if (r == 0 && count) {
                next = min_u64(next, child);
                next_end = max_u64(next_end, (uint64_t)child + count);
            }
        }
        if (r == 0 && next < end && next < next_end)
            r = -EUCLEAN; /* only a forged index leads back */
        first = next;
        end = next_end;
    }
    *ret_need = sum;
    return r;
}

static int look_at_room(int folder_fd, struct amount *ret_room)
{
    struct statvfs space;

    if (fstatvfs(folder_fd, &space) < 0)
        return -errno;
    *ret_room = (struct amount){.bytes = UINT64_MAX,
                                .inodes = space.f_files ? space.f_favail : UINT64_MAX,
                                .is_memory = storage_of(folder_fd).is_memory};
    if (space.f_blocks) /* else the filesystem has no limit */
        ret_room->bytes = (uint64_t)space.f_bavail * space.f_frsize;
    if (ret_room->is_memory) {
        uint64_t memory = budget_free_bytes("");
        memory -= min_u64(memory, SPARE_BYTES);
        ret_room->is_jobs = memory < ret_room->bytes;
        ret_room->bytes = min_u64(ret_room->bytes, memory);
    }
    ret_room->bytes -= ret_room->bytes / SPARE_SHARE;
    return 0;
}

/* Deduct what others that are at work have still to write. */
static void leave_to_others(const struct mounter *m, const struct registry *registry,
                            struct amount *room)
{
    auto_slots struct slot_list list = {0};

    slots_list(registry, &list);
    for (size_t i = 0; i < list.count; i++) {
        const struct counters *c = list.at[i]->counters;
        uint64_t ready = atomic_load(&c->extract_ready);
        if (c->extracted && atomic_load(&c->state) == MOUNT_STARTING &&
            strcmp(list.at[i]->name, m->slot->name) != 0 && ready < c->extract_bytes)
            room->bytes -= min_u64(room->bytes, c->extract_bytes - ready);
    }
}

static int refuse_room(const struct mounter *m, const struct amount *need,
                       const struct amount *room)
{
    const char *archive = m->options->archive;

    if (need->inodes > room->inodes)
        return cli_failf(
            archive,
            "extracted, it has %s files and directories, and %s has room for %s; "
            "name a folder elsewhere (--extract=DIR), or mount it, without --extract",
            cli_count(need->inodes), m->slot->folder, cli_count(room->inodes));
    return cli_failf(
        archive,
        "extracted, it takes %s, and there is room for %s in %s; %sname a folder %s "
        "(--extract=DIR), or mount it, without --extract",
        cli_bytes(need->bytes), cli_bytes(room->bytes),
        room->is_jobs ? "the memory of this job" : m->slot->folder,
        room->is_jobs ? "ask for more memory, " : "",
        room->is_memory ? "on a disk of this node" : "with more room");
}

uint64_t mounter_extracted_bytes(const struct mounter *m)
{
    struct amount need, room = {0};
    bool fits = m->pot && measure_tree(m, &need) == 0 &&
                look_at_room(m->slot->folder_fd, &room) == 0 && need.bytes <= room.bytes &&
                need.inodes <= room.inodes;
    return fits ? need.bytes : 0;
}

int mounter_find_room(struct mounter *m)
{
    auto_registry registry = REGISTRY_NONE;
    struct counters *c = m->slot->counters;
    struct amount need, room = {0};
    int r = measure_tree(m, &need);

    if (r == 0)
        r = slots_lock_of(m->slot, &registry);
    if (r == 0)
        r = look_at_room(m->slot->folder_fd, &room);
    if (r < 0)
        return cli_fail(m->options->archive, r, NULL);
    leave_to_others(m, &registry, &room);
    if (need.bytes > room.bytes || need.inodes > room.inodes)
        return refuse_room(m, &need, &room);
    c->extract_bytes = need.bytes;
    m->claim_bytes = room.is_memory ? need.bytes : 0;
    return 0;
}

/* ---- the files ---- */

struct making {
    struct mounter *m;
    struct cli_progress line;
};

static void making_report(void *ctx, const struct fault *what)
{
    struct making *making = ctx;
    cli_progress_end(&making->line);
    cli_fail(making->m->options->archive, -what->err, what);
}

static void making_show(void *ctx, const char *doing, const struct progress *progress)
{
    struct making *making = ctx;
    struct counters *c = making->m->slot->counters;
    double share = (double)progress->bytes_done / (double)max_u64(progress->bytes_total, 1);
    atomic_store(&c->extract_ready, (uint64_t)(share * (double)c->extract_bytes));
    cli_progress_show(&making->line, doing, progress);
}

/* By the slot's own descriptor, whatever its path leads to by now. */
static int extract_here(struct making *making, const char *part, struct fault *fault,
                        struct extract_result *ret_result)
{
    struct mounter *m = making->m;
    char self[32];
    bool is_found = false;
    auto_close int fd = openat(m->slot->folder_fd, m->slot->name,
                               O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);

    if (fd < 0)
        return -errno;
    snprintf(self, sizeof(self), "/proc/self/fd/%d", fd);
    const struct extract_options options = {
        .work = {.threads = min_u32(m->options->threads, EXTRACT_THREADS_MAX),
                 .report = making_report,
                 .progress = making_show,
                 .ctx = making,
                 .stop = interrupt_flag()},
        .directory = self,
        .is_new = true,
        .paths = &part,
        .path_count = *part ? 1 : 0,
        .path_found = &is_found,
        .exact_modes = geteuid() == 0,
        .owners = geteuid() == 0 && place_knows_all_users(), /* else not all can be given */
    };
    return extract_run(m->pot, &options, fault, ret_result);
}

static int check_result(const struct mounter *m, int r, struct fault *fault,
                        const struct extract_result *result)
{
    const char *archive = m->options->archive;

    if (r == -EINTR && mounter_caught())
        return CLI_FAILED;
    if (fault && (r == -ENOSPC || r == -EDQUOT)) /* others have taken the room since */
        fault_advise(fault,
                     "name a folder with more room (--extract=DIR), or mount it, without "
                     "--extract");
    if (r < 0)
        return cli_fail(archive, r, fault);
    if (result->lost_xattrs)
        cli_note("%s: %s of its files lack extended attributes, which this user or the "
                 "filesystem can't set",
                 archive, cli_count(result->lost_xattrs));
    if (result->unprivileged)
        cli_note(
            "%s: set-id bits, device nodes and attributes of the system are left out (of %s "
            "%s)",
            archive, cli_count(result->unprivileged),
            result->unprivileged == 1 ? "member" : "members");
    if (result->problems)
        return cli_failf(archive,
                         "%s of its members can't be extracted; mounted, without --extract, it "
                         "shows the others",
                         cli_count(result->problems));
    return 0;
}

/* The directory that is shown: all of them, or --subdir's. */
static int find_part(struct mounter *m, char ret_part[PATH_MAX])
{
    char directory[PATH_MAX];
    size_t len;
    int r = index_path(m->pot->index, m->root, ret_part, PATH_MAX, &len);

    slot_directory(m->slot, directory);
    if (r == 0 && (size_t)snprintf(m->path, sizeof(m->path), "%s%s%s", directory,
                                   len ? "/" : "", ret_part) >= sizeof(m->path))
        r = -ENAMETOOLONG;
    if (r == 0)
        strcpy(m->slot->counters->mountpoint, m->path);
    return r;
}

int mounter_extract(struct mounter *m)
{
    struct making making = {.m = m};
    struct extract_result result = {0};
    struct counters *c = m->slot->counters;
    struct fault fault = {0};
    char part[PATH_MAX];
    cpu_set_t before;
    const uint64_t start_ns = now_ns();
    /* The task may be bound to one core; its files are for all. */
    const bool is_bound = sched_getaffinity(0, sizeof(before), &before) == 0;
    int r = find_part(m, part);

    cli_raise_file_limit(); /* files of several pieces are open until their last one */
    if (is_bound)
        cpus_widen();
    cli_progress_start(&making.line);
    if (r == 0)
        r = extract_here(&making, part, &fault, &result);
    cli_progress_end(&making.line);
    if (is_bound)
        sched_setaffinity(0, sizeof(before), &before);
    r = check_result(m, r, fault.err ? &fault : NULL, &result);
    if (r != 0)
        return r;
    c->files = result.files;
    c->total_bytes = result.bytes;
    c->extract_ns = now_ns() - start_ns;
    atomic_store(&c->extract_ready, c->extract_bytes);
    uint32_t state = MOUNT_STARTING;
    return atomic_compare_exchange_strong(&c->state, &state, MOUNT_SERVING)
               ? 0
               : cli_failf(m->options->archive,
                           "while it was extracted, its owner or its job has ended");
}
