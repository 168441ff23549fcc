/*
 * Messages to the user about an archive being opened: permanent lines, the progress of a long
 * step, and the remark that a child left.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "numbers.h"
#include "pot_private.h"

void pot_note_fault(const struct pot_options *options, const char *path,
                    const struct fault *fault)
{
    char line[1400];
    if (!options->note)
        return;
    fault_describe(fault, -fault->err, path, line, sizeof(line));
    options->note(options->ctx, line);
}

void pot_note(const struct pot_options *options, const char *path, const char *format, ...)
{
    struct fault fault = {.err = EUCLEAN, .offset = FAULT_NO_OFFSET};
    va_list args;
    va_start(args, format);
    vsnprintf(fault.what, sizeof(fault.what), format, args);
    va_end(args);
    pot_note_fault(options, path, &fault); /* makes its text safe for a terminal */
}

void pot_place_fault(const struct source *source, struct fault *fault)
{
    if (!fault || !fault->err || fault->offset == FAULT_NO_OFFSET)
        return;
    const struct source *file = source_at(source, &fault->offset);
    fault->offset += source_start(file);
    if (source_member(source, 0) != source)
        fault_set_file(fault, source_name(file));
}

void pot_note_left_out(const struct pot_options *options, const struct pot *pot)
{
    uint64_t count = index_left_out(pot->index), cursor = 0;
    struct fault first = {.err = EUCLEAN, .offset = FAULT_NO_OFFSET};
    if (count == 0)
        return;
    if (index_left_out_next(pot->index, &cursor, &first) < 0)
        snprintf(first.what, sizeof(first.what), "a member can't be shown");
    if (!pot->packed && !pot->parts)
        pot_place_fault(pot->source, &first);
    char kinds[LEFT_OUT_TEXT_LEN], line[sizeof(kinds) + 1400];
    bool tells_kinds = index_left_out_text(pot->index, kinds) > 1;
    int len = fault_describe(&first, -EUCLEAN, pot->path, line, 1200);
    snprintf(line + min_u32((uint32_t)len, 1199), sizeof(kinds) + 200,
             count == 1 ? "; it is left out"
                        : "; it is left out, and so %s %" PRIu64
                          " more%s%s%s: 'onepot verify' lists them",
             count == 2 ? "is" : "are", count - 1, tells_kinds ? " (in all " : "",
             tells_kinds ? kinds : "", tells_kinds ? ")" : "");
    if (options->note)
        options->note(options->ctx, line);
}

struct watching {
    const struct pot_options *options;
    const char *doing;
    char note[sizeof(((struct progress *)0)->note)];
};

static bool pot_note_progress(void *ctx, const struct progress *progress)
{
    struct watching *w = ctx;
    memcpy(w->note, progress->note, sizeof(w->note));
    w->note[sizeof(w->note) - 1] = '\0';
    if (w->options->progress)
        w->options->progress(w->options->ctx, w->doing, progress);
    return !w->options->cancelled || !*w->options->cancelled;
}

int pot_run(const struct pot_options *options, const char *path, const char *doing,
            int (*fn)(void *arg, struct progress *progress, struct fault *fault), void *arg,
            const struct sandbox_limits *limits, struct fault *fault)
{
    struct watching w = {.options = options, .doing = doing};
    int r = sandbox_run(fn, arg, limits, pot_note_progress, &w, fault);
    if (r == 0 && w.note[0])
        pot_note(options, path, "%s", w.note);
    return r;
}
