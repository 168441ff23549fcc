/*
 * Findings about this node's places for state, mount points and copies of archives. Room is the
 * space that the filesystem and, in memory, the job's limit leave free.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "budget.h"
#include "cleanup.h"
#include "cli.h"
#include "doctor.h"
#include "mountinfo.h"
#include "place.h"
#include "source.h"
#include "stage.h"

void doctor_filesystem(int fd, char type[32])
{
    struct mount_entry mount;
    snprintf(type, 32, "%s", mountinfo_of(fd, &mount) == 0 ? mount.type : "type not known");
}

/* ---- places ---- */

/* Would a copy of the archive fit? In memory it counts against the job's limit. */
static bool see_fit(struct findings *f, const char *path, uint64_t bytes, uint64_t free_bytes,
                    bool is_memory)
{
    uint64_t room = is_memory ? budget_room_bytes("") : UINT64_MAX;
    if (room > free_bytes)
        room = free_bytes;
    room -= room / 16; /* staging leaves this much free */
    finding_add(f, bytes <= room ? FINDING_GOOD : FINDING_FACT, path,
                bytes <= room ? "a copy of the archive (%s) fits: --stage=%s"
                              : "a copy of the archive (%s) does not fit in %s",
                cli_bytes(bytes), bytes <= room ? path : cli_bytes(room));
    if (is_memory && bytes > room && bytes <= free_bytes)
        finding_advise(f, "there is room on the filesystem, but not in the job's memory");
    return bytes <= room;
}

/* Could another user replace what would lie there? Then it is not used. */
static bool see_refusal(struct findings *f, const char *path)
{
    char text[PATH_MAX + 256];
    struct place_refusal refusal;
    struct place place;
    int r = place_open(path, PLACE_SHARED, &place, &refusal);
    if (r == 0)
        close(place.fd);
    if (r != -EPERM)
        return false;
    finding_add(f, FINDING_WARNING, path, "is not used: %s",
                place_explain(&refusal, text, sizeof(text)));
    return true;
}

/* True: the archive would be staged there. */
static bool see_place(struct findings *f, const char *path, uint64_t archive_bytes)
{
    char type[32];
    struct statvfs fs;
    if (see_refusal(f, path))
        return false;
    auto_close int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0 || fstatvfs(fd, &fs) < 0) {
        finding_add(f, FINDING_WARNING, path, "can't be used: %s", fault_errno(errno));
        return false;
    }
    uint64_t free_bytes = (uint64_t)fs.f_bavail * fs.f_frsize;
    struct storage storage = storage_of(fd);
    bool writable = access(path, W_OK | X_OK) == 0;
    doctor_filesystem(fd, type);
    finding_add(f, writable ? FINDING_GOOD : FINDING_WARNING, path, "%s%s, %s free%s%s", type,
                storage.is_memory  ? " (memory)"
                : storage.is_local ? " (on this node)"
                                   : " (not known to be on this node)",
                cli_bytes(free_bytes), writable ? "" : ", not writable for you",
                fs.f_flag & ST_NOEXEC ? ", noexec (programs in a mount there still run)" : "");
    return archive_bytes && writable &&
           see_fit(f, path, archive_bytes, free_bytes, storage.is_memory) &&
           (storage.is_local || storage.is_memory);
}

const char *doctor_storage(struct findings *f, uint64_t archive_bytes)
{
    f->section = "places";
    const char *tmpdir = getenv("TMPDIR"), *own = getenv("ONEPOT_RUNTIME_DIR");
    const char *place = NULL;
    if (own && *own)
        see_place(f, own, 0);
    if (see_place(f, "/dev/shm", archive_bytes))
        place = "/dev/shm";
    if (!tmpdir || !*tmpdir)
        finding_add(f, FINDING_FACT, "$TMPDIR", "not set");
    else if (strcmp(tmpdir, "/tmp") != 0 && see_place(f, tmpdir, archive_bytes) && !place)
        place = tmpdir;
    return see_place(f, "/tmp", archive_bytes) && !place ? "/tmp" : place;
}

/* ---- copies ---- */

struct copies {
    struct findings *findings;
    unsigned count;
};

static int see_copy(void *ctx, const struct stage_copy_info *info)
{
    struct copies *c = ctx;
    bool left = !info->used && !info->owner;
    c->count++;
    finding_add(c->findings, left ? FINDING_WARNING : FINDING_FACT, info->archive,
                "%s of %s in %s, %s", cli_bytes(info->report.bytes_here),
                cli_bytes(info->report.bytes), info->folder,
                info->used    ? "in use"
                : info->owner ? "kept for later"
                              : "left by a process that was killed");
    if (left)
        finding_advise(c->findings, "the next mount or 'onepot unstage --all' removes it");
    else if (!info->used)
        finding_advise(c->findings, "'onepot unstage' removes it; it takes room until then");
    return 0;
}

void doctor_copies(struct findings *f)
{
    f->section = "copies";
    struct copies copies = {f, 0};
    int r = stage_each(NULL, see_copy, &copies);
    if (r < 0)
        finding_add(f, FINDING_WARNING, "of archives", "not known: %s", fault_errno(r));
    else if (copies.count == 0)
        finding_add(f, FINDING_FACT, "of archives", "none of yours on this node");
}
