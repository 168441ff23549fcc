/*
 * onepot unstage: remove copies that 'onepot stage' made. A copy that a mount or a loader uses
 * is only released, and removed with its last user.
 */
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli.h"
#include "commands.h"
#include "file_id.h"
#include "place.h"
#include "stage.h"

static int unstage_main(int argc, char **argv);

const struct cli_command command_unstage = {
    "unstage", unstage_main, "remove such copies", "[--dir DIR] ARCHIVE... | --all",
    "Remove copies of archives that 'onepot stage' made on this node. A copy that is in use\n"
    "is removed with its last user.\n"};

struct search {
    const char *archive; /* NULL: all */
    char full[PATH_MAX]; /* its path when it was staged; "" if unknown */
    struct file_id id;   /* ino 0: unknown */
    bool quiet;
    unsigned found;
};

static bool is_wanted(const struct search *s, const struct stage_report *copy)
{
    if (!s->archive)
        return true;
    struct file_id id = {copy->identity->dev, copy->identity->ino};
    if (s->id.ino && file_id_equal(id, s->id))
        return true;
    return strcmp(copy->archive, s->full[0] ? s->full : s->archive) == 0;
}

static int remove_copy(void *ctx, const struct stage_report *copy)
{
    struct search *s = ctx;
    if (!is_wanted(s, copy))
        return 0;
    s->found++;
    if (!s->quiet)
        cli_note("%s: %s in %s %s", copy->archive, cli_bytes(copy->bytes_here), copy->folder,
                 copy->is_used ? "go with the last mount or loader that uses them" : "removed");
    return 1;
}

static int unstage_one(const char *archive, const char *place, bool quiet)
{
    struct search s = {.archive = archive, .quiet = quiet};
    struct stat st;
    if (archive && stat(archive, &st) == 0)
        s.id = file_id_of(&st);
    if (archive && !realpath(archive, s.full))
        s.full[0] = '\0';
    int r = stage_each(place, remove_copy, &s);
    if (r < 0)
        return cli_fail(archive, r, NULL);
    if (r > 0)
        cli_note("%d folder%s of the name onepot-stage-%u %s not yours alone, and %s skipped",
                 r, r == 1 ? "" : "s", place_uid(), r == 1 ? "is" : "are",
                 r == 1 ? "was" : "were");
    return archive && !s.found ? cli_failf(archive, "there is no copy of it on this node")
                               : CLI_OK;
}

static int unstage_main(int argc, char **argv)
{
    const char *place = NULL;
    bool all = false, quiet = false;
    const struct cli_option options[] = {
        {"--all", "all of yours", .flag = &all},
        {"--dir=DIR", "those in DIR, not in memory, $TMPDIR and /tmp", .text = &place},
        {"-q, --quiet", "say nothing if all is well", .flag = &quiet},
        {NULL},
    };
    int status = cli_parse(&command_unstage, options, argc, argv);
    if (status != CLI_GO_ON)
        return status;
    if (all == (optind < argc))
        return cli_usage_error(&command_unstage, all ? "--all and archives exclude each other"
                                                     : "no archive was named");
    status = all ? unstage_one(NULL, place, quiet) : CLI_OK;
    for (int i = optind; i < argc; i++)
        if (unstage_one(argv[i], place, quiet) != CLI_OK)
            status = CLI_FAILED;
    return status;
}
