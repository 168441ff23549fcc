/*
 * Open an archive with the terminal connected: notes stay as lines, long steps show progress, a
 * failure becomes the error line.
 */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "cleanup.h"
#include "cli.h"
#include "clock.h"
#include "content.h"
#include "interrupt.h"
#include "path.h"

struct opening {
    struct cli_progress line;
    const struct fileset_options *given; /* NULL: none */
    /* Of cli_digest: */
    const struct fileset *fileset;
    _Atomic bool cancelled;
    bool is_told; /* how long it takes */
};

static void opening_note(void *ctx, const char *text)
{
    struct opening *o = ctx;
    cli_progress_note(&o->line, text);
    if (o->given && o->given->note)
        o->given->note(o->given->ctx, text);
}

static void opening_show(void *ctx, const char *doing, const struct progress *progress)
{
    struct opening *o = ctx;
    cli_progress_show(&o->line, doing, progress);
    if (o->given && o->given->progress)
        o->given->progress(o->given->ctx, doing, progress);
}

/* With this many archives open, the usual limit of descriptors (1024) is enough. */
#define FEW_ARCHIVES 100

void cli_expect_archives(size_t count)
{
    if (count > FEW_ARCHIVES || cli_plain)
        cli_raise_file_limit();
    source_expect(count);
}

void cli_advise(const struct cli_doubt *doubt, const char *file, struct fault *fault)
{
    for (size_t i = 0; doubt && i < doubt->count; i++) {
        const char *word = doubt->words[i];
        const size_t len = strlen(word);
        const bool is_in = strncmp(file, word, len) == 0 &&
                           (!file[len] || file[len] == '/' || (len && word[len - 1] == '/'));
        if (is_in && (!doubt->err || fault->err == -doubt->err))
            fault_advise(fault, "%s", doubt->advice);
    }
}

int cli_open_list(const struct archive_list *list, const char *name,
                  const struct cli_doubt *doubt, const struct fileset_options *options,
                  struct fileset **ret_fileset)
{
    struct opening opening = {.given = options};
    struct fileset_options all = options ? *options : (struct fileset_options){0};
    struct fault fault = {0};
    all.note = opening_note;
    all.ctx = &opening;
    all.max_ratio = cli_max_ratio;
    all.offset = cli_offset;
    all.ignores_zeros = cli_ignores_zeros;
    all.is_whole = list->is_whole;
    all.is_plain = list->is_plain;
    int r = cli_compose(&all.compose);
    if (r < 0)
        return r;
    all.together = cli_together;
    cli_progress_start(&opening.line);
    all.progress = opening.line.shown || all.progress ? opening_show : NULL;
    if (list->count > 1 || list->is_plain)
        cli_expect_archives(list->count);
    r = fileset_open_many((const char *const *)list->at, list->count, name, &all, &fault,
                          ret_fileset);
    cli_progress_end(&opening.line);
    if (r < 0)
        cli_advise(doubt, fault.file[0] ? fault.file : name, &fault);
    if (r < 0)
        cli_fail(list->count == 1 ? list->at[0] : name, r, &fault);
    return r;
}

int cli_list_archives(char *const *words, size_t count, struct archive_list *list)
{
    list->is_plain = cli_plain;
    for (size_t i = 0; i < count; i++) {
        struct fault fault = {0};
        int r = archive_list_add(list, words[i], &fault);
        if (r < 0) {
            cli_fail(words[i], r, &fault);
            return r;
        }
    }
    int r = archive_list_join(list);
    if (r < 0) {
        cli_fail(NULL, r, NULL);
        archive_list_free(list);
    }
    return r;
}

int cli_open_words(const struct cli_paths *words, size_t first, size_t count,
                   const struct fileset_options *options, struct fileset **ret_fileset)
{
    const struct cli_doubt is_path = {
        .words = words->archives + 1,
        .count = words->guessed ? words->archive_count - 1 : 0,
        .err = -ENOMSG,
        .advice = "if it is a path in the archive before it, write it behind '--'"};
    struct archive_list list = {0};
    char name[CLI_NAME_LEN];
    int r = cli_list_archives(words->archives + first, count, &list);
    if (r == 0)
        r = cli_open_list(&list, cli_name_of(words->archives + first, count, name), &is_path,
                          options, ret_fileset);
    archive_list_free(&list);
    return r;
}

int cli_open_fileset(const char *word, const struct fileset_options *options,
                     struct fileset **ret_fileset)
{
    struct archive_list list = {0};
    int r = cli_list_archives((char *const *)&word, 1, &list);
    if (r == 0)
        r = cli_open_list(&list, word, NULL, options, ret_fileset);
    archive_list_free(&list);
    return r;
}

/* ---- the digest ---- */

#define TELL_AFTER_NS UINT64_C(2000000000)

static void digest_show(void *ctx, const char *doing, const struct progress *progress)
{
    struct opening *o = ctx;
    uint64_t ns = now_ns() - o->line.start_ns;
    double done = (double)progress->bytes_done, all = (double)progress->bytes_total;
    opening_show(o, doing, progress);
    o->cancelled = atomic_load(interrupt_flag()) != 0;
    if (o->is_told || ns < TELL_AFTER_NS || done <= 0)
        return;
    const struct index_info *info = index_info(o->fileset->index);
    bool has_sums = info->has_sums && info->sum_kind == SUM_XXH3;
    auto_free char *folder =
        o->fileset->index_path ? path_folder(o->fileset->index_path) : NULL;
    bool is_kept = o->given->save == FILESET_SAVE_ALWAYS; /* this is 'onepot index' */
    bool can_be_kept =
        o->fileset->origin != FILESET_INDEX_EMBEDDED && (!folder || access(folder, W_OK) == 0);
    char line[512];
    o->is_told = true;
    snprintf(line, sizeof(line), "%.200s: %s, so %s are read, which takes about %s%s",
             o->fileset->path,
             has_sums ? "the sums in its index leave out holes"
                      : "its index has no sums that make a digest",
             cli_bytes((uint64_t)all), cli_time((uint64_t)((double)ns * all / done)),
             is_kept || !can_be_kept ? ""
             : o->fileset->parts
                 ? "; 'onepot index --digest' of one pattern, folder or @LIST that "
                   "names them does that once for all"
                 : "; 'onepot index --digest' does that once for all");
    opening_note(o, line);
}

/*
 * Open the archive of a fileset once more, with the content of its stream. Nobody may have put
 * another in its place.
 */
static int digest_open_content(const struct fileset *fileset,
                               const struct fileset_options *options,
                               struct fileset **ret_fileset)
{
    const struct archive_list one = {.at = (char **)&fileset->path, .count = 1};
    struct fileset_options own = *options;
    own.store = NULL;
    own.save = FILESET_SAVE_NEVER;
    own.rebuild = false;
    own.lists_left_out = true;
    int r = cli_open_list(&one, fileset->path, NULL, &own, ret_fileset);
    if (r < 0 || source_identity_equal(&(*ret_fileset)->identity, &fileset->identity))
        return r;
    cli_failf(fileset->path, "it was changed while it was opened; try again");
    fileset_close(*ret_fileset);
    return -ESTALE;
}

int cli_digest(struct fileset *fileset, const struct fileset_options *options,
               char ret_hex[2 * INDEX_DIGEST_BYTES + 1])
{
    struct opening opening = {.given = options, .fileset = fileset};
    const struct fileset_options how = {
        .progress = digest_show, .cancelled = &opening.cancelled, .ctx = &opening};
    bool is_known = index_info(fileset->index)->digest_kind == DIGEST_TREE;
    bool is_here = !fileset->compression || (fileset->packed && !options->store);
    struct fileset *whole = fileset;
    uint8_t digest[INDEX_DIGEST_BYTES];
    struct fault fault = {0};
    int r = is_known || is_here ? 0 : digest_open_content(fileset, options, &whole);
    if (r < 0)
        return r;
    cli_progress_start(&opening.line);
    r = content_digest(whole, cli_default_jobs(), &how, &fault, digest);
    cli_progress_end(&opening.line);
    if (r < 0 && r != -ECANCELED)
        cli_fail(fileset->path, r, &fault);
    if (whole != fileset)
        fileset_close(whole);
    if (r < 0)
        return r;
    index_set_digest(fileset->index, digest);
    for (size_t i = 0; i < INDEX_DIGEST_BYTES; i++)
        snprintf(ret_hex + 2 * i, 3, "%02x", digest[i]);
    return 0;
}
