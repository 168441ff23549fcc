/*
 * onepot cat: write files of an archive to standard output, through the same read path as a
 * mount: stored bytes go from the mapped archive to writev without a copy.
 */
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

#include "cli.h"
#include "codec.h"
#include "commands.h"
#include "reader.h"
#include "write_at.h"

static int cat_main(int argc, char **argv);

const struct cli_command command_cat = {
    "cat", cat_main, "write files of an archive to standard output", "ARCHIVE PATH...",
    "Write the files PATH... of an archive to standard output, one after another.\n"
    "Symbolic links are followed within the archive.\n"};

struct output {
    struct fileset *fileset;
    const char *archive;
    struct reader *reader;
    struct reader_scratch *scratch;
    bool broken; /* standard output accepts no more */
};

/* Standard output may be a pipe that another process made non-blocking. */
static int wait_writable(void)
{
    struct pollfd p = {.fd = STDOUT_FILENO, .events = POLLOUT};
    return poll(&p, 1, -1) < 0 && errno != EINTR ? -errno : 0;
}

/* 0, or an error of the archive with *ret_offset; errors of standard output set o->broken. */
static int cat_copy_file(struct output *o, uint32_t position, uint64_t *ret_offset)
{
    uint64_t offset = 0;
    for (;;) {
        struct span span;
        int r = reader_get(o->reader, o->scratch, position, offset, READER_SPAN_MAX, &span);
        if (r < 0) {
            *ret_offset = offset;
            return r;
        }
        struct iovec iov[READER_IOV_MAX];
        memcpy(iov, span.iov, sizeof(iov));
        struct iovec *left = iov;
        int count = span.iov_count;
        size_t bytes = span.bytes;
        while (r == 0 && count > 0) {
            ssize_t n = writev(STDOUT_FILENO, left, count);
            if (n < 0 && errno == EAGAIN)
                r = wait_writable();
            else if (n < 0 && errno != EINTR)
                r = -errno;
            iovec_advance(&left, &count, n > 0 ? (size_t)n : 0);
        }
        reader_put(o->reader, &span);
        if (r == -EFAULT) { /* the mapped archive was truncated */
            *ret_offset = offset;
            return -ENODATA;
        }
        if (r < 0) {
            cli_failf("standard output", "%s", fault_errno(r));
            o->broken = true;
            return 0;
        }
        if (bytes == 0)
            return 0;
        offset += bytes;
    }
}

static const char *cat_describe(int err)
{
    switch (-err) {
    case EISDIR:
        return "it is a directory";
    case EINVAL:
        return "it is not a regular file";
    case EUCLEAN:
        return "the archive is damaged here";
    case ENOTSUP:
        return CODEC_UNSUPPORTED;
    case ENODATA:
        return "the archive ends before the file does";
    default:
        return cli_path_error(err) ? cli_path_error(err) : fault_errno(err);
    }
}

/* The archive of a union that has the file. */
static void name_part(const struct output *o, const char *path, struct fault *fault)
{
    uint32_t position;
    struct extent extent;
    if (fileset_is_several(o->fileset) &&
        index_follow(o->fileset->index, INDEX_ROOT, path, NULL, &position) == 0 &&
        index_extent(o->fileset->index, position, 0, &extent) == 0 &&
        extent.kind != EXTENT_HOLE)
        fault_set_file(fault,
                       source_name(source_at(o->fileset->source, &extent.source_offset)));
}

static int fail_path(const struct output *o, const char *path, int err, uint64_t offset)
{
    struct fault fault = {0};
    fault_set(&fault, err, path, offset, "%s", cat_describe(err));
    if (err == -EUCLEAN || err == -ENODATA)
        fault_advise(&fault, "compare the archive with its original, or copy it again");
    else if (err == -ENOTSUP)
        fault_advise(&fault, CODEC_UNSUPPORTED_ADVICE);
    name_part(o, path, &fault);
    return cli_fail(o->archive, err, &fault);
}

static int cat_path(struct output *o, const char *path)
{
    uint32_t position;
    struct node node;
    uint64_t offset = FAULT_NO_OFFSET;
    int r = index_follow(o->fileset->index, INDEX_ROOT, path, NULL, &position);
    if (r == 0)
        r = index_node(o->fileset->index, position, &node);
    if (r == 0 && S_ISDIR(node.mode))
        r = -EISDIR;
    else if (r == 0 && !S_ISREG(node.mode))
        r = -EINVAL;
    else if (r == 0)
        r = cat_copy_file(o, node.position, &offset);
    if (r < 0)
        return fail_path(o, path, r, offset);
    return o->broken ? CLI_FAILED : CLI_OK;
}

static int cat_main(int argc, char **argv)
{
    const struct cli_option options[] = {
        CLI_ARCHIVES,
        {NULL},
    };
    const struct reader_options reading = {.cache_bytes = 16u << 20};
    struct fault fault = {0};
    int status = cli_parse(&command_cat, options, argc, argv);
    if (status != CLI_GO_ON)
        return status;
    if (argc - optind < 2)
        return cli_usage_error(&command_cat, optind == argc
                                                 ? "no archive was named"
                                                 : "no path in the archive was named");
    struct output o = {.archive = argv[optind]};
    if (cli_open_fileset(o.archive, NULL, &o.fileset) < 0)
        return CLI_FAILED;
    int r = reader_new(o.fileset, &reading, &fault, &o.reader);
    if (r == 0)
        r = reader_scratch_new(o.reader, &o.scratch);
    status = r < 0 ? cli_fail(o.archive, r, &fault) : CLI_OK;
    for (int i = optind + 1; r == 0 && i < argc && !o.broken; i++)
        if (cat_path(&o, argv[i]) != CLI_OK)
            status = CLI_FAILED;
    reader_scratch_free(o.scratch);
    reader_free(o.reader);
    fileset_close(o.fileset);
    return status;
}
