/*
 * onepot clean: remove what ended jobs left on this node. An administrator's epilog calls it as
 * root.
 */
#include <stdbool.h>
#include <stdio.h>
#include <unistd.h>

#include "account.h"
#include "cleaner.h"
#include "cli.h"
#include "commands.h"
#include "fileset.h"

static int clean_main(int argc, char **argv);

const struct cli_command command_clean = {
    "clean", clean_main, "remove what ended jobs left on this node",
    "[--job ID | --user NAME | --all | --cache]",
    "Remove what your ended jobs left on this node: mounts whose process was killed, their\n"
    "state, and copies of archives. Nothing that is in use or has a living owner is "
    "removed.\n"};

static int clean_cache(void)
{
    struct fileset_cache cache;
    struct fault fault = {0};
    int r = fileset_clean_cache(&cache, &fault);

    if (cache.removed || cache.in_use)
        fprintf(stderr, "onepot: %s saved index%s removed (%s), %s in use\n",
                cli_count(cache.removed), cache.removed == 1 ? "" : "es",
                cli_bytes(cache.removed_bytes), cli_count(cache.in_use));
    return r < 0 ? cli_fail("the cache folder", r, &fault) : CLI_OK;
}

static int clean_main(int argc, char **argv)
{
    const char *job = NULL, *user = NULL;
    bool all = false, cache = false;
    const struct cli_option options[] = {
        {"--job=ID",
         "what this job left, even mounts that still answer: only for a job that has ended; as "
         "root: of any user",
         .text = &job},
        {"--user=NAME", "what this user's jobs left (root)", .text = &user},
        {"--all", "what all users' jobs left (root)", .flag = &all},
        {"--cache",
         "your indexes of archives in the cache folder ($XDG_CACHE_HOME/onepot), but those in "
         "use",
         .flag = &cache},
        {NULL},
    };
    int status = cli_parse(&command_clean, options, argc, argv);

    if (status != CLI_GO_ON)
        return status;
    if (optind < argc)
        return cli_usage_error(&command_clean, "unexpected argument '%s'", argv[optind]);
    if ((job != NULL) + (user != NULL) + all + cache > 1)
        return cli_usage_error(&command_clean,
                               "--job, --user, --all and --cache exclude each other");
    if (job && !*job)
        return cli_usage_error(&command_clean,
                               "--job: the id is empty: a variable that is not set?");
    if (all && geteuid() != 0)
        return cli_failf(NULL, "only root may clean up after other users");
    if (cache)
        return clean_cache();
    uid_t uid;
    if (user && !account_find(user, &uid))
        return cli_failf(NULL, "--user: there is no user %s; name the number (id -u)", user);
    if (user)
        return cleaner_user(uid, NULL, true);
    return all || (job && geteuid() == 0) ? cleaner_all(job)
                                          : cleaner_user(geteuid(), job, true);
}
