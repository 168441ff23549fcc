/*
 * onepot clean: remove what ended jobs left on this node. An administrator's epilog calls it as
 * root.
 */
#include <pwd.h>
#include <stdbool.h>
#include <stdlib.h>
#include <unistd.h>

#include "cleaner.h"
#include "cli.h"
#include "commands.h"

static const struct cli_usage usage = {
    "clean", "[--job ID | --user NAME | --all]",
    "Remove what your ended jobs left on this node: mounts whose process was killed, their\n"
    "state, copies of archives. What is in use, or belongs to somebody who lives, stays.\n"
    "\n"
    "      --job ID          what this job left, also mounts that still answer: only for a\n"
    "                        job that has ended; root: whoever's it was\n"
    "      --user NAME       what this user's jobs left (root)\n"
    "      --all             what all users' jobs left (root)\n"};

/* A user's name, or the number of a user who no longer has a name. */
static int clean_user(const char *name)
{
    const struct passwd *user = getpwnam(name);
    char *end;
    unsigned long uid = user ? user->pw_uid : strtoul(name, &end, 10);

    if (!user && (*name < '0' || *name > '9' || *end || uid >= UINT32_MAX))
        return cli_failf(NULL, "--user: there is no user %s", name);
    return cleaner_user((uid_t)uid, NULL);
}

struct request {
    const char *job, *user;
    bool all;
};

static const struct cli_option options[] = {
    {"job", 0, CLI_TEXT, CLI_AT(struct request, job)},
    {"user", 0, CLI_TEXT, CLI_AT(struct request, user)},
    {"all", 0, CLI_FLAG, CLI_AT(struct request, all)},
    CLI_END,
};

int command_clean(int argc, char **argv)
{
    struct request rq = {0};
    int status = cli_parse(&usage, options, argc, argv, &rq);

    if (status != CLI_GO_ON)
        return status;
    if (optind < argc)
        return cli_usage_error(&usage, "'%s' is one too many", argv[optind]);
    if ((rq.job != NULL) + (rq.user != NULL) + rq.all > 1)
        return cli_usage_error(&usage, "--job, --user and --all exclude each other");
    if (rq.job && !*rq.job)
        return cli_usage_error(&usage, "--job: the id is empty: a variable that is not set?");
    if (rq.all && geteuid() != 0)
        return cli_failf(NULL, "only root may clean up after other users");
    if (rq.user)
        return clean_user(rq.user);
    return rq.all || (rq.job && geteuid() == 0) ? cleaner_all(rq.job) : cleaner_own(rq.job);
}
