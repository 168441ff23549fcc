/*
 * Findings about an archive. Only the bytes that show its format are read.
 */
#include <fcntl.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "backend.h"
#include "cleanup.h"
#include "cli.h"
#include "doctor.h"
#include "pot.h"
#include "source.h"
#include "stripes.h"

static void see_fault(struct findings *f, const char *path, const struct fault *fault)
{
    finding_add(f, FINDING_WRONG, path, "%s%s%s", fault->member[0] ? fault->member : "",
                fault->member[0] ? ": " : "", fault->what);
    finding_advise(f, "%s", fault->advice);
}

static bool see_place_of(struct findings *f, const struct source *source)
{
    char type[32];
    auto_close int fd = open(source_name(source), O_PATH | O_CLOEXEC);
    doctor_filesystem(fd, type);
    finding_add(f, FINDING_FACT, "size", "%s", cli_bytes(source_size(source)));
    bool local = source_is_local(source);
    finding_add(f, FINDING_FACT, "filesystem", "%s, %s", type,
                local ? "on this node: it is mapped, and the kernel caches it"
                      : "not on this node, as far as is known: it is read piece by piece, "
                        "and the mount caches it");
    if (!local)
        finding_advise(f, "--stage copies it to this node while it is read");
    struct statvfs vfs;
    if (fstatvfs(fd, &vfs) == 0)
        finding_add(f, FINDING_FACT, "age",
                    vfs.f_flag & ST_NOATIME
                        ? "reading renews none of its times (noatime): a purge of old files "
                          "may remove it while it is in use"
                        : "reading renews its access time; its modification time stays");
    return local;
}

/* On one storage target of Lustre no number of nodes reads it faster. */
static void see_stripes(struct findings *f, const struct source *source)
{
    const char *path = source_name(source);
    unsigned stripes;
    if (stripes_of(path, &stripes) < 0)
        return;
    bool is_few = stripes_are_few(stripes, source_size(source));
    finding_add(f, is_few ? FINDING_WARNING : FINDING_FACT, "stripes",
                "it lies on %u storage %s of Lustre", stripes,
                stripes == 1 ? "target" : "targets");
    if (is_few)
        finding_advise(f, "'lfs migrate -c %u %s' spreads it", STRIPES_ADVISED, path);
}

/* The index that a mount would use, if there is one. */
static void see_index(struct findings *f, const char *path, const char *compression)
{
    const struct pot_options options = {
        .save = POT_SAVE_NEVER, .names_only = true, .only_ready = true};
    struct fault fault = {0};
    struct pot *pot;
    int r = pot_open(path, &options, &fault, &pot);
    if (r == 0) {
        bool is_saved = pot->origin != POT_INDEX_EMBEDDED && pot->index_path;
        finding_add(f, FINDING_GOOD, "index", is_saved ? "saved in %s" : "in the archive",
                    pot->index_path);
        pot_close(pot);
        return;
    }
    if (r != -EAGAIN) {
        see_fault(f, path, &fault);
        return;
    }
    if (compression) {
        finding_add(
            f, FINDING_WARNING, "index",
            "none: if it is one stream of %s, each mount has to unpack it first; if it has "
            "several frames, one is made for the first mount",
            compression);
        finding_advise(f, "make an onepot archive of it with 'onepot pack'");
        return;
    }
    finding_add(
        f, FINDING_FACT, "index",
        "none in it, and none that fits beside it or in $XDG_CACHE_HOME: it is made for "
        "the first mount");
    finding_advise(f, "'onepot index %s' does that ahead of time", path);
}

void doctor_archive(struct findings *f, const char *path, struct doctor_archive *ret_archive)
{
    f->section = "archive";
    struct fault fault = {0};
    struct source *source = NULL;
    const struct backend *backend;
    const char *compression;
    *ret_archive = (struct doctor_archive){0};
    struct container container = {0};
    int r = pot_open_source(path, 0, &fault, &container, &source);
    if (r == 0)
        r = backend_find(source, &fault, &backend, &compression);
    if (r < 0) {
        see_fault(f, path, &fault);
        source_close(source);
        return;
    }
    ret_archive->bytes = source_size(source);
    ret_archive->is_packed = compression != NULL;
    if (container.name)
        finding_add(f, FINDING_GOOD, path, "%s in %s", backend->name, container.name);
    else
        finding_add(f, FINDING_GOOD, path, "%s", backend->name);
    ret_archive->is_local = see_place_of(f, source);
    see_stripes(f, source);
    see_index(f, source_name(source), compression);
    source_close(source);
}
