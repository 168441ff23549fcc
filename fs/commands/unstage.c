/*
 * onepot unstage: remove copies that 'onepot stage' made. A copy that a mount or a loader uses
 * is only released, and removed with its last user.
 */
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli.h"
#include "commands.h"
#include "stage.h"

static const struct cli_usage usage = {
    "unstage", "[--dir DIR] ARCHIVE... | --all",
    "Remove the copies of archives that 'onepot stage' made on this node. A copy that is\n"
    "in use goes with its last user.\n"
    "\n"
    "      --all             all of yours\n"
    "      --dir DIR         those in DIR, not in memory, $TMPDIR and /tmp\n"
    "  -q, --quiet           say nothing if all is well\n"};

struct search {
    const char *archive; /* NULL: all */
    char full[PATH_MAX]; /* its path when it was staged; "" if unknown */
    bool has_status;
    struct stat status;
    bool quiet;
    unsigned found;
};

static bool is_wanted(const struct search *s, const struct stage_copy_info *info)
{
    if (!s->archive)
        return true;
    if (s->has_status && info->identity->dev == s->status.st_dev &&
        info->identity->ino == s->status.st_ino)
        return true;
    return strcmp(info->archive, s->full[0] ? s->full : s->archive) == 0;
}

static int look(void *ctx, const struct stage_copy_info *info)
{
    struct search *s = ctx;
    char bytes[CLI_TEXT_LEN];
    if (!is_wanted(s, info))
        return 0;
    s->found++;
    if (!s->quiet)
        cli_note("%s: %s in %s %s", info->archive,
                 cli_format_bytes(info->report.bytes_here, bytes), info->folder,
                 info->used ? "go with the last mount or loader that uses them" : "removed");
    return 1;
}

static int unstage_one(const char *archive, const char *place, bool quiet)
{
    struct search s = {.archive = archive, .quiet = quiet};
    if (archive) {
        s.has_status = stat(archive, &s.status) == 0;
        if (!realpath(archive, s.full))
            s.full[0] = '\0';
    }
    int r = stage_each(place, look, &s);
    if (r < 0)
        return cli_fail(archive, r, NULL);
    if (r > 0)
        cli_note("%d folder%s of the name onepot-stage-%u %s not yours alone, and %s skipped",
                 r, r == 1 ? "" : "s", (unsigned)geteuid(), r == 1 ? "is" : "are",
                 r == 1 ? "was" : "were");
    return archive && !s.found ? cli_failf(archive, "there is no copy of it on this node")
                               : CLI_OK;
}

int command_unstage(int argc, char **argv)
{
    enum { OPTION_ALL = CLI_OPTION_OWN, OPTION_DIR };
    static const struct option longs[] = {
        {"all", no_argument, NULL, OPTION_ALL},
        {"dir", required_argument, NULL, OPTION_DIR},
        {"quiet", no_argument, NULL, 'q'},
        CLI_OPTIONS_END,
    };
    const char *place = NULL;
    bool all = false, quiet = false;
    int opt, status = CLI_GO_ON;
    while ((opt = cli_getopt(&usage, argc, argv, "q", longs, &status)) != -1) {
        all |= opt == OPTION_ALL;
        quiet |= opt == 'q';
        if (opt == OPTION_DIR)
            place = optarg;
    }
    if (status != CLI_GO_ON)
        return status;
    if (all == (optind < argc))
        return cli_usage_error(&usage, all ? "--all and archives exclude each other"
                                           : "no archive was named");
    status = all ? unstage_one(NULL, place, quiet) : CLI_OK;
    for (int i = optind; i < argc; i++)
        if (unstage_one(argv[i], place, quiet) != CLI_OK)
            status = CLI_FAILED;
    return status;
}
