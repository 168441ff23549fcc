/*
 * The archive of a mount: opened by the first process that wants it, with its reader, its copy
 * on this node (--stage), and the files of --order and --record. All this comes before there is
 * a daemon, so that errors show on the command line.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <xxhash.h>

#include "budget.h"
#include "cleanup.h"
#include "clock.h"
#include "mounter.h"
#include "numbers.h"
#include "path.h"
#include "source_retry.h"
#include "text.h"

static int find_root(struct mounter *m)
{
    const char *subdir = m->options->subdir;
    struct node node;

    m->root = INDEX_ROOT;
    if (!subdir)
        return 0;
    int r = index_follow(m->fileset->index, INDEX_ROOT, subdir, NULL, &m->root);
    if (r == 0)
        r = index_node(m->fileset->index, m->root, &node);
    if (r == 0 && !S_ISDIR(node.mode))
        r = -ENOTDIR;
    if (r < 0)
        return cli_failf(m->options->archive, "--subdir %s: %s", subdir,
                         cli_path_error(r) ? cli_path_error(r) : fault_errno(r));
    return index_inode_position(m->fileset->index, m->root, &m->root) < 0 ? CLI_FAILED : 0;
}

/* The canonical path of a file, which may be missing; a link as the last name stays. */
static int named_path(const char *given, char ret_path[PATH_MAX])
{
    auto_free char *folder = path_folder(given);
    auto_free char *real = folder ? realpath(folder, NULL) : NULL;

    if (!real)
        return folder ? -errno : -ENOMEM;
    int n =
        snprintf(ret_path, PATH_MAX, "%s/%s", strcmp(real, "/") ? real : "", path_base(given));
    return n < PATH_MAX ? 0 : -ENAMETOOLONG;
}

/* The path of a part's open file, unless a link named it or its bytes lie in another file. */
static const char *canonical_name(const struct fileset *fileset, size_t i, char buf[PATH_MAX])
{
    const char *given = fileset->parts[i].path;
    const struct source *source = source_member(fileset->source, i);
    const char *real = source_real_path(source);
    if (real && strcmp(path_base(real), path_base(given)) == 0)
        return real;
    bool is_named = !source_is_by_link(source) && named_path(given, buf) == 0;
    return is_named || realpath(given, buf) ? buf : given;
}

/* The canonical names of all archives, as far as there is room. */
static void describe_parts(const struct mounter *m)
{
    struct counters *c = m->slot->counters;
    size_t used = 0;

    c->archives = m->fileset->parts ? (uint32_t)m->fileset->part_count : 1;
    for (size_t i = 0; i < m->fileset->part_count; i++) {
        char path[PATH_MAX];
        const char *name = canonical_name(m->fileset, i, path);
        size_t len = strlen(name) + 1;
        if (len > sizeof(c->archive_names) - used)
            break;
        memcpy(c->archive_names + used, name, len);
        used += len;
    }
    c->archive_names_bytes = (uint32_t)used;
}

static void describe_archive(const struct mounter *m)
{
    const struct index_info *info = index_info(m->fileset->index);
    struct counters *c = m->slot->counters;

    snprintf(c->format, sizeof(c->format), "%s", m->fileset->backend->name);
    c->entries = info->entries;
    c->files = info->files;
    c->total_bytes = info->total_bytes;
    for (size_t i = 0; info->digest_kind == DIGEST_TREE && i < sizeof(info->digest); i++)
        snprintf(c->digest + 2 * i, 3, "%02x", info->digest[i]);
    describe_parts(m);
}

/*
 * Find the archive's copy or make room for one, unless a stream is unpacked to one, or it is to
 * be read without a copy.
 */
static int stage_archive(struct mounter *m)
{
    const struct mount_options *o = m->options;
    const struct stage_options options = {
        .archive = m->archive, .place = o->stage_place, .in_job = o->stage_in_job};
    struct stage_report report;
    struct fault fault = {0};

    int r = m->stage ? 0 : stage_open(m->fileset->source, &options, &fault, &m->stage);
    if (r == -EEXIST) {
        cli_note("%s: it %s", o->archive, fault.what);
        return 0;
    }
    if (r == -ENOSPC && m->fileset->is_plain && !o->stage_place) {
        cli_note("%s: %s; it is read without a copy, with many reads in flight; "
                 "--stage=DIR names a folder of this node with more room",
                 o->archive, fault.what);
        return 0;
    }
    if (r < 0)
        return cli_fail(o->archive, r, &fault);
    if (!m->fileset->compression) /* else it is read where it was unpacked to */
        r = stage_attach(m->stage, &m->fileset->source, false);
    if (r < 0)
        return cli_fail(o->archive, r, &fault);
    stage_get_report(m->stage, &report);
    struct counters *c = m->slot->counters;
    snprintf(c->stage_folder, sizeof(c->stage_folder), "%s", report.folder);
    c->stage_bytes = report.bytes;
    c->stage_unpacks = m->fileset->compression != NULL;
    atomic_store(&c->stage_here_bytes, report.bytes_here);
    return 0;
}

/* ---- opening may take minutes: the log shows progress ---- */

#define TELL_EVERY_NS UINT64_C(10000000000)

static void log_progress(void *ctx, const char *doing, const struct progress *progress)
{
    struct control_log *log = ctx;
    uint64_t now = now_ns(), done = progress->bytes_done, all = progress->bytes_total;
    char line[256];

    if (now - log->told_ns < TELL_EVERY_NS)
        return;
    log->told_ns = now;
    if (all)
        snprintf(line, sizeof(line), "%.150s: %llu of %llu MiB (%.0f %%)", doing,
                 (unsigned long long)done >> 20, (unsigned long long)all >> 20,
                 100.0 * (double)done / (double)all);
    else
        snprintf(line, sizeof(line), "%.150s: %llu MiB", doing, (unsigned long long)done >> 20);
    control_log(log, line);
}

/* ---- --expect ---- */

static int check_expected(const struct mounter *m, const struct fileset_options *options)
{
    const char *wanted = m->options->expect;
    char hex[2 * INDEX_DIGEST_BYTES + 1];
    struct stage_report copy = {.whole = true};
    struct fileset_options own = *options;
    if (!wanted)
        return 0;
    if (m->stage)
        stage_get_report(m->stage, &copy);
    if (copy.whole) /* else the daemon will unpack it */
        own.store = NULL;
    if (cli_digest(m->fileset, &own, hex) < 0)
        return CLI_FAILED;
    if (strncasecmp(hex, wanted, strlen(wanted)) == 0)
        return 0;
    return cli_failf(m->options->archive,
                     "its digest is %s, and --expect names %s: these are other data", hex,
                     wanted);
}

/* ---- the archive of a layer's changes ---- */

/* The archives as a command line in any folder names them. */
static int write_words(const struct mounter *m, char ret_words[PATH_MAX])
{
    auto_free char *text = NULL, *cwd = get_current_dir_name();
    size_t len = 0;
    FILE *out = open_memstream(&text, &len);

    for (size_t i = 0; out && i < m->options->archive_count; i++) {
        const char *word = mounter_is_union(m) ? m->options->archives[i] : m->archive;
        auto_free char *path = NULL;
        const bool is_list = *word == '@';
        if (asprintf(&path, "%s%s%s%s", is_list ? "@" : "",
                     word[is_list] == '/' || !cwd ? "" : cwd,
                     word[is_list] == '/' || !cwd ? "" : "/", word + is_list) < 0)
            path = NULL;
        fputs(i ? " " : "", out);
        cli_print_quoted(out, path ? path : word);
    }
    if (!out || fclose(out) != 0)
        return -ENOMEM;
    snprintf(ret_words, PATH_MAX, "%s", len < PATH_MAX ? text : m->options->archive);
    return 0;
}

/* A number for the part of the archives, or other tree, that they show; 0: all as it is. */
static uint64_t tree_of_options(const struct mount_options *o)
{
    const struct fileset_compose *compose = NULL;
    auto_free char *text = NULL;

    cli_compose(&compose);
    if (!compose && !o->subdir && !cli_together.each && !cli_together.on_conflict &&
        !cli_offset && !cli_ignores_zeros)
        return 0;
    const char *nested = compose && compose->nested_glob ? compose->nested_glob : "";
    int n =
        asprintf(&text, "%s\n%s\n%d%d%d%s %" PRIu64 " %s", o->subdir ? o->subdir : "", o->view,
                 compose && compose->nested, cli_together.each, (int)cli_together.on_conflict,
                 cli_ignores_zeros ? "z" : "", cli_offset, nested);
    if (n < 0)
        text = NULL;
    return n < 0 ? 1 : XXH3_64bits(text, (size_t)n);
}

/* Identify the archive for a layer: by its digest, or else as a saved index does. */
static int know_archive(const struct mounter *m, struct layer_archive *ret)
{
    const struct index_info *info = index_info(m->fileset->index);
    const struct fileset *fileset = m->fileset;

    *ret = (struct layer_archive){
        .bytes = info->archive_bytes,
        .samples = info->archive_fingerprint,
        .mtime_sec = m->identity.mtime_sec,
        .mtime_nsec = (uint32_t)m->identity.mtime_nsec,
        .tree = tree_of_options(m->options),
    };
    for (size_t i = 0; i < fileset->part_count; i++)
        ret->samples = ret->samples * UINT64_C(0x9e3779b97f4a7c15) + fileset->parts[i].samples;
    for (size_t i = 0; info->digest_kind == DIGEST_TREE && i < sizeof(info->digest); i++)
        snprintf(ret->digest + 2 * i, 3, "%02x", info->digest[i]);
    return write_words(m, ret->words);
}

/* "digest 12...", or size and time, for a message. */
#define KNOWN_BY_MAX 96
static const char *known_by(const struct layer_archive *a, char buf[KNOWN_BY_MAX])
{
    char day[32] = "";
    struct tm tm;

    if (gmtime_r(&(time_t){a->mtime_sec}, &tm))
        strftime(day, sizeof(day), "%F %T UTC", &tm);
    if (a->digest[0])
        snprintf(buf, KNOWN_BY_MAX, "digest %s", a->digest);
    else
        snprintf(buf, KNOWN_BY_MAX, "%" PRIu64 " bytes of %s", a->bytes, day);
    return buf;
}

/* The changes in DIR are another archive's, and would show a mixture of both. */
static int refuse_layer(const struct mounter *m, const struct layer_archive *now,
                        const struct layer_archive *then)
{
    const char *dir = m->layer.dir;
    const bool by_program = !m->for_run && geteuid() != 0;
    char a[KNOWN_BY_MAX], b[KNOWN_BY_MAX];
    auto_free char *command = NULL;
    size_t len;

    if (now->tree != then->tree)
        return cli_failf(
            dir,
            "its changes were made over another part or arrangement of %s "
            "(--subdir, --include, --each and the like); give the options of then, "
            "or name another folder",
            then->words);
    if (strcmp(now->words, then->words) == 0)
        return cli_failf(
            dir,
            "its changes were made over an earlier %s (%s), and not over the "
            "present one (%s); name another folder; the files that were written lie "
            "in %s/changes, and without %s/archive they count for the present one",
            then->words, known_by(then, a), known_by(now, b), dir, dir);
    FILE *out = open_memstream(&command, &len);
    if (!out)
        return cli_fail(dir, -ENOMEM, NULL);
    fputs(by_program ? "data=$(onepot mount --writable=" : "onepot run --writable=", out);
    cli_print_quoted(out, dir);
    fprintf(out, " %s%s", then->words,
            by_program ? ") && onepot pack -o new.tar \"$data\""
                       : " -- onepot pack -o new.tar {}");
    if (fclose(out) != 0)
        return cli_fail(dir, -ENOMEM, NULL);
    return cli_failf(dir,
                     "its changes were made over %s (%s), and %s (%s) is another archive; name "
                     "another folder; to keep them%s: %s",
                     then->words, known_by(then, a), now->words, known_by(now, b),
                     then->tree ? ", with the same options" : "", command);
}

/* Changes of one archive lie over no other. */
static int bind_layer(const struct mounter *m)
{
    struct layer_archive now, then;
    char why[LAYER_WHY_MAX];

    if (!m->layer.dir[0])
        return 0;
    int r = know_archive(m, &now);
    if (r < 0)
        return cli_fail(m->options->archive, r, NULL);
    r = layer_bind(&m->layer, &now, &then, why);
    if (r == -EXDEV)
        return refuse_layer(m, &now, &then);
    if (r < 0)
        return cli_failf(m->layer.dir, "%s", why);
    if (r > 0)
        cli_note("%s: it has changes, and nothing says of which archive; from now on they are "
                 "those of %s",
                 m->layer.dir, now.words);
    return 0;
}

/* ---- --order and --record ---- */

#define ORDER_BYTES_MOST (UINT64_C(4) << 30)
#define ORDER_LINES_MOST (UINT64_C(1) << 28) /* a gigabyte of positions */
/* This many epochs, of lines this long on average, are more than any order needs. */
#define ORDER_EPOCHS_MOST 64u
#define ORDER_LINE_BYTES 256u
#define ORDER_BYTES_LEAST (UINT64_C(1) << 20)

/*
 * How large an order of this archive may be. It is held in memory, and a wrong file (a device,
 * a pipe that never ends, the archive itself) must not use up the job's memory.
 */
static uint64_t bytes_allowed(const struct mounter *m)
{
    uint64_t entries = index_info(m->fileset->index)->entries;
    uint64_t bytes = ORDER_BYTES_LEAST + entries * ORDER_EPOCHS_MOST * ORDER_LINE_BYTES;
    uint64_t room = budget_room_bytes("") / 2;

    bytes = min_u64(bytes, ORDER_BYTES_MOST);
    return room < ORDER_BYTES_LEAST ? bytes : min_u64(bytes, room);
}

/* Read a whole file, or standard input ("-"). -EFBIG: more than `most` bytes. */
static int read_order_file(const char *path, uint64_t most, struct text *ret_text)
{
    auto_close int opened =
        strcmp(path, "-") == 0 ? -1 : open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY);
    int fd = strcmp(path, "-") == 0 ? STDIN_FILENO : opened;

    if (fd < 0)
        return -errno;
    return text_read(fd, most, ret_text);
}

static int open_order(struct mounter *m)
{
    const char *path = m->options->order, *name = path;
    uint64_t left_out = 0;
    struct fault fault = {0};
    struct text text = {0};

    if (!path)
        return 0;
    if (strcmp(path, "-") == 0)
        name = "standard input";
    uint64_t most = bytes_allowed(m);
    int r = read_order_file(path, most, &text);
    if (r == -EFBIG)
        fault_set_advised(
            &fault, r, NULL, FAULT_NO_OFFSET, "one epoch is enough, each file once",
            "it has more than the %llu bytes that an order of %u entries may have",
            (unsigned long long)most, index_info(m->fileset->index)->entries);
    else if (r < 0)
        fault_set_errno(&fault, r, NULL, "the order can't be read");
    if (r == 0)
        r = read_list_parse(m->fileset->index, m->root, text.at, text.count, ORDER_LINES_MOST,
                            &fault, &left_out, &m->order);
    vector_free(&text);
    if (r < 0)
        return cli_fail(name, r, &fault);
    if (left_out)
        cli_note("%s: %s; %" PRIu64 " of %" PRIu64 " lines are left out", name, fault.what,
                 left_out, left_out + known_reads_count(m->order));
    return 0;
}

static int open_record(struct mounter *m)
{
    const char *given = m->options->record;
    char path[PATH_MAX];
    struct stat st;

    if (!given)
        return 0;
    /* The daemon works in another directory. */
    int r = *path_base(given) ? named_path(given, path) : -EISDIR;
    if (r == 0 && stat(path, &st) == 0 && !S_ISREG(st.st_mode))
        r = S_ISDIR(st.st_mode) ? -EISDIR : -EINVAL;
    if (r == 0)
        r = recorder_new(path, m->fileset->index, m->root, &m->recorder);
    return r < 0 ? cli_failf(given, "the record can't be made: %s", fault_errno(r)) : 0;
}

/* ---- the archive, with its readers ---- */

#define STUCK_MAX_S 1000000u

/*
 * Will the kernel's page cache hold all files, once read? Otherwise the block cache is of use
 * even where it holds the same as the page cache: under a shuffle, the kernel's choice of what
 * to drop gives hardly a hit.
 */
static bool fits_page_cache(const struct fileset *fileset, uint64_t memory_bytes)
{
    return index_info(fileset->index)->data_bytes <= memory_bytes / 2;
}

int mounter_open_archive(struct mounter *m)
{
    const struct mount_options *o = m->options;
    struct reader_options reader = {
        .not_for_children = true,
        /* This leaves a waiting reader half of its time. */
        .stuck_ms = o->io_timeout_s < STUCK_MAX_S ? o->io_timeout_s * 500u : 0,
        .cache_stored = true,
        .copies = o->verify};
    struct fault fault = {0};

    struct stage_store store = {.options = {.archive = m->archive,
                                            .place = o->stage_place,
                                            .in_job = o->stage_in_job,
                                            .idle_s = o->io_timeout_s},
                                .is_private = !o->stage};
    const struct fileset_store fileset_store = stage_fileset_store(&store);
    /* Without standard error, which shows it anyway. */
    struct control_log log = {.fd = m->log.fd, .told_ns = now_ns()};
    const uint64_t memory_bytes = budget_memory_bytes("");
    const struct fileset_options options = {.saves_later = !o->extract,
                                            .memory_bytes = memory_bytes,
                                            .store = o->extract ? NULL : &fileset_store,
                                            .note = control_log,
                                            .progress = log_progress,
                                            .ctx = &log};
    int r = cli_open_list(&m->archives, o->archive, &o->doubt, &options, &m->fileset);
    m->stage = store.stage;
    if (r < 0)
        return CLI_FAILED;
    source_set_retries(m->fileset->packed ? m->fileset->packed : m->fileset->source,
                       o->retries);
    /* With --skip-damaged only one of the two identities has the archives that were skipped. */
    bool may_differ = m->fileset->parts && cli_together.skip_damaged;
    if (!may_differ && !source_identity_equal(&m->fileset->identity, &m->identity))
        return cli_failf(o->archive, "it was changed while it was opened; try again");
    r = find_root(m);
    if (r == 0)
        r = check_expected(m, &options);
    if (r == 0)
        r = bind_layer(m);
    if (r == 0 && o->extract)
        describe_archive(m);
    if (r != 0 || o->extract)
        return r;
    r = o->stage || m->stage ? stage_archive(m) : 0;
    if (r != 0)
        return r;
    m->cache_bytes = o->cache_given ? o->cache_bytes : budget_cache_of(memory_bytes);
    reader.cache_bytes = m->cache_bytes;
    reader.is_kept_above = fits_page_cache(m->fileset, memory_bytes);
    r = reader_new(m->fileset, &reader, &fault, &m->reader);
    if (r < 0)
        return cli_fail(o->archive, r, &fault);
    if (o->verify && !index_info(m->fileset->index)->has_some_sums)
        cli_note("%s: it has no sums of its files, so --verify compares nothing; an archive "
                 "by 'onepot pack' has",
                 o->archive);
    else if (o->verify && !index_info(m->fileset->index)->has_sums)
        cli_note("%s: some of its archives have no sums of their files, which are served "
                 "unchecked",
                 o->archive);
    describe_archive(m);
    r = open_order(m);
    return r == 0 ? open_record(m) : r;
}
