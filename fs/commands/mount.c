/*
 * onepot mount: makes a mount that stays when the command returns, and prints its path once it
 * answers.
 */
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <unistd.h>

#include "cli.h"
#include "commands.h"
#include "interrupt.h"
#include "launcher.h"
#include "mounter.h"

static const struct cli_usage usage = {
    "mount", "[OPTION...] ARCHIVE... [--at DIR]",
    "Show an archive as a directory, or several as one. An ARCHIVE may also be a folder of\n"
    "archives, a pattern ('train-*.tar') or @LIST, a file with a name a line. Returns when it\n"
    "is ready, and prints its path.\n"};

/* Was the command started with a standard output? main() has replaced a missing one. */
static bool has_listener(void)
{
    return (fcntl(STDOUT_FILENO, F_GETFL) & O_ACCMODE) != O_RDONLY;
}

/* Print the mount's path for the caller; without that nobody would own the mount. */
static int announce_mount(struct mounter *m)
{
    int status = CLI_OK;

    /* main() reports that it could not be written. */
    if (has_listener() && (puts(m->path) < 0 || fflush(stdout) != 0))
        status = CLI_FAILED;
    if (status == CLI_OK)
        status = mounter_keep(m);
    if (status != CLI_OK)
        mounter_abandon(m);
    return status;
}

int command_mount(int argc, char **argv)
{
    struct mount_options options;
    struct mounter m;
    int status = mount_options_parse(&usage, false, argc, argv, &options);

    if (status != CLI_GO_ON)
        return status;
    int r = mounter_init(&m, &options, false);
    if (r < 0)
        return cli_fail(NULL, r, NULL);
    status = mounter_start(&m);
    if (status == CLI_GO_ON)
        status = announce_mount(&m);
    if (status == 0 && !options.foreground &&
        launcher_in_slurm_step(launcher_environment, NULL))
        cli_note("%s: the mount ends with this step of srun; 'srun onepot run' is for one "
                 "command, and a mount in the batch script for all steps on its node",
                 options.archive);
    if (status == 0 && options.foreground)
        status = mounter_serve(&m);
    mounter_free(&m);
    if (status != 0 && mounter_caught()) /* die of the signal, as without a clean-up */
        interrupt_die_of(mounter_caught());
    return status;
}
