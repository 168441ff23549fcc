/*
 * The sums that an archive's files have. Where all sums are of one kind, the index's header
 * tells; a tree of several archives may have files with sums of different kinds, and files
 * without.
 */
#include "checksum.h"
#include "pot.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <sys/stat.h>

static int pot_sums_of_mixed(const struct index *index, struct pot_sums *sums)
{
    uint32_t entries = index_info(index)->entries;
    int r = 0;
    for (uint32_t i = 0; r == 0 && i < entries; i++) {
        struct node node;
        uint64_t sum;
        r = index_node(index, i, &node);
        if (r < 0 || !S_ISREG(node.mode) || node.position != i)
            continue;
        sums->files++;
        r = index_sum(index, i, &sum);
        if (r == -ENODATA) {
            r = 0;
            continue;
        }
        if (r == 0) {
            enum sum_kind kind = checksum_kind(sum);
            sums->kind = sums->with_sum == 0 || sums->kind == kind ? kind : SUM_MIXED;
            sums->with_sum++;
        }
    }
    sums->some = sums->with_sum > 0;
    sums->every = sums->some && sums->with_sum == sums->files;
    return r;
}

int pot_sums(const struct pot *pot, struct pot_sums *ret_sums)
{
    const struct index_info *info = index_info(pot->index);
    struct pot_sums sums = {.files = info->files, .kind = info->sum_kind};
    int r = 0;
    if (info->has_some_sums && info->sum_kind == SUM_MIXED) {
        sums.files = 0;
        r = pot_sums_of_mixed(pot->index, &sums);
    } else if (info->has_sums) {
        sums.some = sums.every = true;
        sums.with_sum = sums.files;
    }
    if (r == 0)
        *ret_sums = sums;
    return r;
}

bool pot_is_packed(const struct pot *pot)
{
    return pot->compression ||
           (pot->backend->stream &&
            (index_info(pot->index)->codec != CODEC_NONE || index_points(pot->index) > 0));
}

const char *pot_sums_text(const struct pot *pot, const struct pot_sums *sums,
                          char text[POT_SUMS_TEXT_LEN])
{
    const char *kind = checksum_name(sums->kind);
    if (sums->every)
        snprintf(text, POT_SUMS_TEXT_LEN, "of every file (%s)", kind);
    else if (sums->some)
        snprintf(text, POT_SUMS_TEXT_LEN, "of %" PRIu64 " of %" PRIu64 " files (%s)",
                 sums->with_sum, sums->files, kind);
    else if (sums->files == 0)
        snprintf(text, POT_SUMS_TEXT_LEN, "there are no files");
    else if (!checksum_available(sums->kind))
        snprintf(text, POT_SUMS_TEXT_LEN, "this onepot was built without %s", kind);
    else if (pot->backend->checked)
        snprintf(text, POT_SUMS_TEXT_LEN, "the sums of %s are compared by 'onepot verify'",
                 pot->backend->file);
    else
        snprintf(text, POT_SUMS_TEXT_LEN, "%s %s no sums of %s files", pot->backend->file,
                 pot->parts ? "have" : "has", pot->parts ? "their" : "its");
    return text;
}
