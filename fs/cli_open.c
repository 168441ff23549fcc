/*
 * Open an archive with the terminal wired to it: notes stay as lines, long steps are
 * shown as progress, a failure becomes the error line.
 */
#include "budget.h"
#include "cli.h"

int cli_open_pot(const char *path, const struct pot_options *options,
                 enum cli_progress_mode mode, struct pot **ret_pot)
{
    struct cli_progress progress;
    struct pot_options all = options ? *options : (struct pot_options){0};
    struct fault fault = {0};
    cli_progress_start(&progress, mode);
    all.note = cli_progress_note;
    all.progress = cli_progress_show;
    all.ctx = &progress;
    if (!all.memory_bytes)
        all.memory_bytes = budget_memory_bytes("");
    int r = pot_open(path, &all, &fault, ret_pot);
    cli_progress_end(&progress);
    if (r < 0)
        cli_fail(path, r, &fault);
    return r;
}
