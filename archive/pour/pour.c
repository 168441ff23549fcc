/*
 * The parent opens the output and waits; the child does the rest.
 *
 * The child's threads compress. It reads and writes with one: a pipe, the sums and the page
 * cache share the time.
 */
#include "pour.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "budget.h"
#include "cleanup.h"
#include "compress.h"
#include "numbers.h"
#include "output.h"
#include "pour_private.h"
#include "sandbox.h"
#include "write_at.h"
#include "syscalls.h"

/*
 * Of private memory. The table of members takes 100 bytes and a name for each; xz may want a
 * large dictionary, and zstd a large window.
 */
#define POUR_MEMORY_LEAST (UINT64_C(1) << 30)
#define POUR_MEMORY_MOST (UINT64_C(8) << 30)
#define PIPE_BYTES (1 << 20)

struct pour_run {
    const struct pack_options *options;
    const struct pour_input *input;
    struct output *output;
    struct compress_pool *pool;
    locale_t locale;
    int report_fd;
    uint64_t reported; /* faults that the caller has got */
    char note[sizeof((struct progress){0}.note)];
};

/* ---- the child ---- */

static void pour_prepare(void *arg)
{
    struct pour_run *run = arg;
    const struct writer_options *w = &run->options->writer;
    if (w->zstd_level && compress_pool_new(w->threads, w->zstd_level, &run->pool) < 0)
        run->pool = NULL; /* the writer tries again, and reports it */
}

static int pour_tar(struct pour *p, struct pour_stream *s)
{
    const struct tar_stream stream = {
        .next = pour_stream_next,
        .error = &s->error,
        .ctx = s,
    };
    const struct tar_taker taker = {
        .add = pour_add,
        .link = pour_link,
        .leave_out = pour_leave_out,
        .ctx = p,
    };
    return tar_take_members(&stream, &taker, p->input->ignores_zeros, p->progress, p->fault);
}

static const char *pour_kind_of(const uint8_t *head, size_t len)
{
    if (len >= 4 && memcmp(head, "PK\3\4", 4) == 0)
        return "a zip, whose directory is at its end";
    if (len >= 4 && memcmp(head, "hsqs", 4) == 0)
        return "a SquashFS image, which can't be read from front to back";
    return "nothing that can be packed from a stream";
}

static int pour_unknown(struct pour *p, const struct pour_stream *s, const uint8_t *head,
                        size_t len)
{
    if (p->progress->bytes_done == 0)
        fault_set(p->fault, -ENOMSG, NULL, FAULT_NO_OFFSET,
                  "is empty: what was to write it wrote nothing");
    else if (s->compression)
        fault_set(p->fault, -ENOMSG, NULL, FAULT_NO_OFFSET, "is %s data%s", s->compression,
                  len ? ", but of nothing that can be packed from a stream" : " of nothing");
    else
        fault_set(p->fault, -ENOMSG, NULL, FAULT_NO_OFFSET, "is %s", pour_kind_of(head, len));
    fault_advise(p->fault, "give a tar, or save it in a file and pack that");
    return -ENOMSG;
}

static int pour_other(struct pour *p, struct pour_stream *s, const uint8_t *head, size_t len)
{
    const struct pour_format *format = pour_find_format(head, len);
    if (pour_is_rar_volume(head, len))
        return fault_set_advised(
            p->fault, -ENOTSUP, NULL, FAULT_NO_OFFSET,
            "extract it (unrar x, 7z x), and pack the directory",
            "is one of several volumes of a RAR archive, which are not read together");
    return format ? pour_container(p, s, format) : pour_unknown(p, s, head, len);
}

int pour_read(struct pour *p)
{
    struct pour_stream s;
    const uint8_t *head;
    size_t len;
    int r = pour_stream_open(&s, p->input->fd, p->progress, p->fault, &head, &len);
    if (r == 0)
        r = len && tar_probe_head(head, len) ? pour_tar(p, &s) : pour_other(p, &s, head, len);
    pour_stream_close(&s);
    return r;
}

/* Ends the archive, and tells the parent of its size and contents. */
static int pour_end(struct pour *p)
{
    int r = writer_finish(steal_ptr(&p->writer), p->fault, &p->result.totals);
    p->output_error = r;
    if (r == 0)
        r = write_at(p->report_fd, &p->result, sizeof(p->result),
                     offsetof(struct pour_report, result));
    return r;
}

static int pour_in_child(void *arg, struct progress *progress, struct fault *fault)
{
    struct pour_run *run = arg;
    const struct pack_options *o = run->options;
    struct writer_options how = o->writer;
    struct pour p = {.options = o,
                     .input = run->input,
                     .selection = {.excludes = o->excludes, .exclude_count = o->exclude_count},
                     .progress = progress,
                     .fault = fault,
                     .locale = run->locale,
                     .report_fd = run->report_fd};
    how.pool = run->pool;
    int r = writer_new(run->output, &how, &p.writer);
    p.output_error = r;
    if (r == 0)
        r = pour_read(&p);
    if (r == 0)
        r = pour_end(&p);
    if (r < 0)
        fault_set_file(fault, p.output_error ? o->output : o->sources[0]);
    pour_free(&p);
    return r; /* the writer goes with the process */
}

/* ---- the parent ---- */

/* A file of fixed size: the child can't make it grow. */
static int pour_open_report(int *ret_fd)
{
    auto_close int fd = syscall_memfd("onepot-report", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0)
        return fd;
    if (ftruncate(fd, (off_t)sizeof(struct pour_report)) < 0 ||
        fcntl(fd, F_ADD_SEALS, F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL) < 0)
        return -errno;
    *ret_fd = steal_fd(&fd);
    return 0;
}

/* Passes on what was left out since the last time. */
static void pour_pass_reports(struct pour_run *run)
{
    const struct pack_options *o = run->options;
    uint64_t count = 0;
    if (!o->report ||
        read_at(run->report_fd, &count, sizeof(count), offsetof(struct pour_report, count)) < 0)
        return;
    for (; run->reported < min_u64(count, POUR_REPORTS); run->reported++) {
        struct fault fault;
        if (read_at(run->report_fd, &fault, sizeof(fault),
                    offsetof(struct pour_report, faults) + run->reported * sizeof(fault)) < 0)
            return;
        fault.member[sizeof(fault.member) - 1] = '\0';
        fault.what[sizeof(fault.what) - 1] = '\0';
        fault.advice[sizeof(fault.advice) - 1] = '\0';
        fault.file[0] = '\0';
        fault_set_file(&fault, o->sources[0]);
        o->report(o->ctx, PACK_PROBLEM, &fault);
    }
}

static bool pour_watch(void *ctx, const struct progress *progress)
{
    struct pour_run *run = ctx;
    const struct pack_options *o = run->options;
    pour_pass_reports(run);
    memcpy(run->note, progress->note, sizeof(run->note) - 1);
    if (o->progress)
        o->progress(o->ctx, "packing", progress);
    return true;
}

static int pour_run_child(struct pour_run *run, struct fault *fault)
{
    const struct pack_options *o = run->options;
    const int keep[] = {run->input->fd, run->output->fd, run->report_fd};
    struct sandbox_limits limits = {
        .memory_bytes =
            min_u64(max_u64(budget_memory_bytes(""), POUR_MEMORY_LEAST), POUR_MEMORY_MOST),
        .file_bytes = INT64_MAX, /* no signal at a limit of the caller */
        .keep_fds = keep,
        .keep_fd_count = sizeof(keep) / sizeof(keep[0]),
        .idle_seconds =
            run->input->is_file ? 0 : UINT32_MAX, /* who writes it may take any time */
        .prepare = pour_prepare,
        .threads = o->writer.zstd_level ? 1 + o->writer.threads : 0,
    };
    if (!run->input->is_file)
        fcntl(run->input->fd, F_SETPIPE_SZ,
              PIPE_BYTES); /* if it is a pipe, and that is allowed */
    int r = sandbox_run(pour_in_child, run, &limits, pour_watch, run, fault);
    if (r < 0)
        fault_set_file(fault, o->sources[0]);
    return r;
}

static void pour_report_parent(const struct pour_run *run, enum pack_report kind,
                               const char *what)
{
    const struct pack_options *o = run->options;
    struct fault fault = {0};
    if (!o->report)
        return;
    fault_set(&fault, -EINVAL, NULL, FAULT_NO_OFFSET, "%s", what);
    fault_set_file(&fault, o->sources[0]);
    o->report(o->ctx, kind, &fault);
}

static int pour_take_result(struct pour_run *run, struct pack_result *ret_result)
{
    int r = read_at(run->report_fd, ret_result, sizeof(*ret_result),
                    offsetof(struct pour_report, result));
    char more[64];
    if (r < 0)
        return r;
    snprintf(more, sizeof(more), "%" PRIu64 " more members were left out",
             ret_result->problems - run->reported);
    if (ret_result->problems > run->reported)
        pour_report_parent(run, PACK_PROBLEM, more);
    if (run->note[0])
        pour_report_parent(run, PACK_NOTE, run->note);
    return 0;
}

int pour_run(const struct pack_options *options, const struct pour_input *input,
             struct fault *fault, struct pack_result *ret_result)
{
    struct pour_run run = {.options = options, .input = input, .report_fd = -1};
    if (options->source_count != 1 || options->shards || options->files_from)
        return -EINVAL;
    output_clean(options->output,
                 &(struct leftovers){.found = pack_report_leftover, .ctx = (void *)options});
    int r =
        output_open(options->output, options->overwrite, options->stripes, fault, &run.output);
    if (r < 0)
        return r;
    run.locale = newlocale(LC_ALL_MASK, "C.UTF-8", (locale_t)0);
    r = pour_open_report(&run.report_fd);
    if (r == 0)
        r = pour_run_child(&run, fault);
    if (r == 0)
        r = pour_take_result(&run, ret_result);
    if (run.report_fd >= 0)
        close(run.report_fd);
    if (run.locale)
        freelocale(run.locale);
    if (r == 0)
        return output_commit(run.output, !options->no_sync, fault);
    output_discard(run.output);
    return r;
}
