/*
 * The session's lines for the mount's log. A burst of lines may be written; after it, one a
 * second. A job whose storage is gone fails some thousand reads a second, and the log lies in
 * somebody's home.
 */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "clock.h"
#include "codec.h"
#include "core.h"

#define LOG_BURST 100u
#define LOG_EVERY_NS UINT64_C(1000000000)

void log_init(struct log *log)
{
    *log = (struct log){0};
    pthread_mutex_init(&log->lock, NULL);
}

void log_destroy(struct log *log)
{
    pthread_mutex_destroy(&log->lock);
}

/* May one more line be written? Under the lock. */
static bool log_has_room(struct log *log, uint64_t now)
{
    uint64_t earned = (now - log->since_ns) / LOG_EVERY_NS;

    if (earned >= LOG_BURST - log->room || log->since_ns == 0) {
        log->room = LOG_BURST;
        log->since_ns = now;
    } else {
        log->room += (unsigned)earned;
        log->since_ns += earned * LOG_EVERY_NS;
    }
    if (log->room == 0) {
        log->left_out++;
        return false;
    }
    log->room--;
    return true;
}

/* Under the lock. */
static void log_write(struct session *s, const char *line)
{
    char more[64];

    if (!s->config.log || !log_has_room(&s->log, now_ns()))
        return;
    snprintf(more, sizeof(more), "%llu lines were left out",
             (unsigned long long)s->log.left_out);
    if (s->log.left_out)
        s->config.log(s->config.log_ctx, more);
    s->log.left_out = 0;
    s->config.log(s->config.log_ctx, line);
}

void session_note(struct session *s, const char *line)
{
    pthread_mutex_lock(&s->log.lock);
    log_write(s, line);
    pthread_mutex_unlock(&s->log.lock);
}

#define LINE_BYTES sizeof(((struct counters *)0)->last_error)
_Static_assert(sizeof(((struct counters *)0)->trouble[0]) == LINE_BYTES,
               "they hold the same line");

void session_trouble(struct session *s, enum counter_trouble kind, const char *format, ...)
{
    struct counters *c = s->config.counters;
    char line[LINE_BYTES] = "";
    va_list args;

    va_start(args, format);
    vsnprintf(line, sizeof(line), format, args);
    va_end(args);
    pthread_mutex_lock(&s->log.lock);
    if (kind < TROUBLE_KINDS && !atomic_load(&c->has_trouble[kind])) {
        memcpy(c->trouble[kind], line, LINE_BYTES);
        atomic_store(&c->has_trouble[kind], true);
    }
    memcpy(c->last_error, line, LINE_BYTES);
    log_write(s, line);
    pthread_mutex_unlock(&s->log.lock);
}

const char *log_path(const struct session *s, uint32_t position, char buf[LOG_PATH_MAX])
{
    size_t len;

    if (index_path(s->index, position, buf, LOG_PATH_MAX, &len) < 0)
        snprintf(buf, LOG_PATH_MAX, "entry %u", position);
    return buf;
}

const char *log_archive(const struct session *s, uint32_t position)
{
    const struct pot *pot = s->config.pot;
    struct extent extent;

    if (!pot_is_several(pot) || index_extent(s->index, position, 0, &extent) < 0 ||
        extent.kind == EXTENT_HOLE)
        return pot->path;
    return source_name(source_at(pot->source, &extent.source_offset));
}

void log_read_error(struct session *s, uint32_t position, uint64_t offset, int err)
{
    char path[LOG_PATH_MAX];

    session_trouble(s, TROUBLE_READ, "%s: %s: can't be read (offset %llu): %s; %s",
                    log_archive(s, position), log_path(s, position, path),
                    (unsigned long long)offset,
                    err == -ENODATA   ? "the archive ends before it"
                    : err == -ENOTSUP ? CODEC_UNSUPPORTED
                                      : fault_errno(err),
                    err == -ENOTSUP  ? CODEC_UNSUPPORTED_ADVICE
                    : err == -ENOMEM ? "give the job more memory"
                    : s->config.pot->is_plain
                        ? "check its storage, and mount the folder anew"
                        : "'onepot verify' tells what else can't be read; copy the archive "
                          "again, and mount it anew");
}
