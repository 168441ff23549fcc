/*
 * Problems with members: words for them, and which ones end the run.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>

#include "codec.h"
#include "extract_private.h"

static const char *extract_describe(const struct extraction *x, int err)
{
    switch (-err) {
    case EEXIST:
        return x->options->overwrite ? "something else is put there again and again"
                                     : "it exists already";
    case EISDIR:
        return "a directory is in its place";
    case ENOTDIR:
    case ELOOP:
        return "what is there is not a directory";
    case ETXTBSY:
        return "the archive itself is in its place";
    case EUCLEAN:
        return "the archive is damaged here";
    case ENOTSUP:
        return CODEC_UNSUPPORTED;
    case ENODATA:
        return "the archive ends before it does";
    case EBADMSG:
        return "";
    default:
        return fault_errno(err);
    }
}

static const char *extract_advice(const struct extraction *x, int err)
{
    switch (-err) {
    case EEXIST:
    case ENOTDIR:
    case ELOOP:
        return x->options->overwrite ? "" : "replace what is there with -f";
    case ENOSPC:
    case EDQUOT:
        return "the unfinished file was removed; free some space, or choose another "
               "directory with -C";
    case EBADMSG:
    case EUCLEAN:
    case ENODATA:
        return "compare the archive with its original, or copy it again";
    case ENOTSUP:
        return CODEC_UNSUPPORTED_ADVICE;
    default:
        return "";
    }
}

static bool ends_the_run(int err)
{
    return err == -ENOSPC || err == -EDQUOT || err == -EROFS || err == -ENOMEM ||
           err == -EMFILE || err == -ENFILE;
}

int extract_problem(struct extraction *x, uint32_t position, int err, uint64_t offset,
                    const char *doing)
{
    char path[8192];
    size_t len;
    struct fault fault = {0};
    if (err == -EINTR) /* stopped: not a problem */
        return err;
    bool is_over = ends_the_run(err) || index_is_lost(x->index);
    if (err == -EUCLEAN && is_over)
        err = -EIO;
    if (index_path(x->index, position, path, sizeof(path), &len) < 0)
        snprintf(path, sizeof(path), "entry %" PRIu32, position);
    const char *why = extract_describe(x, err);
    fault_set(&fault, err, path, offset, "%s%s%s", doing, *doing && *why ? ": " : "", why);
    fault_advise(&fault, "%s", extract_advice(x, err));
    workers_report(&x->workers, &fault, is_over);
    return err;
}
