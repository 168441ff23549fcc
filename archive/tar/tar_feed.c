/*
 * Feeds libarchive.
 *
 * From a mapping, libarchive gets the whole file as one block: nothing is copied, and skipping
 * a member's data is an addition. Without a mapping (network filesystems), reads grow while
 * members are small, so that the filesystem sees a sequential reader. After skipped data they
 * start small again, so that large members are not read just for the header behind them.
 */
#include "tar_private.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>

#include <archive.h>

#include "source.h"

enum {
    FIRST_READ_BYTES = 64 << 10,
    LAST_READ_BYTES = 1 << 20,
};

static ssize_t feed_read(struct archive *a, void *ctx, const void **ret_bytes)
{
    struct tar_feed *feed = ctx;
    uint64_t left = source_size(feed->source) - feed->offset;
    if (feed->map) {
        size_t len = feed->block_bytes && feed->block_bytes < left ? feed->block_bytes : left;
        *ret_bytes = feed->map + feed->offset;
        feed->offset += len;
        return (ssize_t)len;
    }

    size_t len = feed->next_bytes < left ? feed->next_bytes : left;
    if (len == 0)
        return 0;
    feed->err = source_read(feed->source, feed->buf, len, feed->offset);
    if (feed->err < 0) {
        archive_set_error(a, -feed->err, "read error");
        return ARCHIVE_FATAL;
    }
    feed->offset += len;
    if (feed->next_bytes < LAST_READ_BYTES)
        feed->next_bytes *= 2;
    *ret_bytes = feed->buf;
    return (ssize_t)len;
}

static la_int64_t feed_skip(struct archive *a, void *ctx, la_int64_t request)
{
    (void)a;
    struct tar_feed *feed = ctx;
    uint64_t left = source_size(feed->source) - feed->offset;
    if (request <= 0)
        return 0;
    uint64_t len = (uint64_t)request < left ? (uint64_t)request : left;
    feed->offset += len;
    /* A short skip stays within the filesystem's own read-ahead. */
    if (len >= LAST_READ_BYTES)
        feed->next_bytes = FIRST_READ_BYTES;
    return (la_int64_t)len;
}

int tar_feed_open(struct tar_feed *feed, struct source *source, uint64_t offset,
                  size_t block_bytes, struct archive *a)
{
    *feed = (struct tar_feed){
        .source = source,
        .map = source_map(source),
        .offset = offset,
        .next_bytes = FIRST_READ_BYTES,
        .block_bytes = block_bytes,
    };
    /* For pages not in the page cache: read ahead of the headers, not around them. */
    if (feed->map)
        madvise((void *)feed->map, source_size(source), MADV_SEQUENTIAL);
    if (!feed->map && !(feed->buf = malloc(LAST_READ_BYTES)))
        return -ENOMEM;
    archive_read_set_skip_callback(a, feed_skip);
    archive_read_set_read_callback(a, feed_read);
    archive_read_set_callback_data(a, feed);
    if (archive_read_open1(a) == ARCHIVE_OK)
        return 0;
    if (feed->err < 0)
        return feed->err;
    return archive_errno(a) == ENOMEM ? -ENOMEM : -EUCLEAN;
}

void tar_feed_close(struct tar_feed *feed)
{
    if (feed->map)
        madvise((void *)feed->map, source_size(feed->source), MADV_NORMAL);
    free(feed->buf);
    feed->buf = NULL;
}

const char *tar_complaint(struct archive *a)
{
    const char *text = archive_error_string(a);
    return text ? text : "it ends too early";
}
