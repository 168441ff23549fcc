/*
 * Open an archive with the terminal connected: notes stay as lines, long steps show progress, a
 * failure becomes the error line.
 */
#include "budget.h"
#include "cli.h"

struct opening {
    struct cli_progress line;
    const struct pot_options *given; /* NULL: none */
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

/* So many archives may be open in the limit that most systems begin with. */
#define FEW_ARCHIVES 100

void cli_expect_archives(size_t count)
{
    if (count <= FEW_ARCHIVES)
        return;
    cli_raise_file_limit();
    source_expect(count);
}

/* Advise how to mount, if it is a file of a folder that was meant for something else. */
static void advise_of_folder(const char *folder, struct fault *fault)
{
    if (strncmp(fault->file, folder, strlen(folder)) != 0)
        return;
    fault_advise(fault, "the folder is taken for one of archives, as it holds files; if it is "
                        "where to mount, empty it, or add -o nonempty");
}

int cli_open_list(const struct archive_list *list, const char *name, const char *folder,
                  const struct pot_options *options, enum cli_progress_mode mode,
                  struct pot **ret_pot)
{
    struct opening opening = {.given = options};
    struct pot_options all = options ? *options : (struct pot_options){0};
    struct fault fault = {0};
    all.note = opening_note;
    all.progress = opening_show;
    all.ctx = &opening;
    all.max_ratio = cli_max_ratio();
    all.offset = cli_offset();
    int r = cli_compose(&all.compose);
    if (r < 0)
        return r;
    all.together = cli_together;
    if (!all.memory_bytes)
        all.memory_bytes = budget_memory_bytes("");
    cli_progress_start(&opening.line, mode);
    cli_expect_archives(list->count);
    r = pot_open_many((const char *const *)list->at, list->count, name, &all, &fault, ret_pot);
    cli_progress_end(&opening.line);
    if (r < 0 && folder)
        advise_of_folder(folder, &fault);
    if (r < 0)
        cli_fail(list->count == 1 ? list->at[0] : name, r, &fault);
    return r;
}

int cli_open_pot(const char *word, const struct pot_options *options,
                 enum cli_progress_mode mode, struct pot **ret_pot)
{
    struct archive_list list = {0};
    struct fault fault = {0};
    int r = archive_list_add(&list, word, &fault);
    if (r < 0)
        cli_fail(word, r, &fault);
    else
        r = cli_open_list(&list, word, NULL, options, mode, ret_pot);
    archive_list_free(&list);
    return r;
}
