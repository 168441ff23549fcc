/*
 * onepot completions: complete command lines in a shell.
 *
 * The scripts (completions.bash, .zsh, .fish) know no command and no option. At each press of
 * the tab key they call `onepot completions SHELL -- WORD...` with the words up to the cursor.
 * The first line of the answer is a kind: words, or files, directories and programs, which the
 * shell finds itself. Lines of words follow that fit, with a description behind a tab.
 *
 * The command's own cli_parse reads the words (cli_see); its help says what they may be: DIR,
 * FILE, ARCHIVE, PATH. Members come from an index that is ready; their names are untrusted.
 */
#include <limits.h>
#include <mntent.h>
#include <stdlib.h>
#include <string.h>

#include "carried.h"
#include "cli.h"
#include "commands.h"
#include "utf8.h"

static int completions_main(int argc, char **argv);

const struct cli_command command_completions = {
    "completions", completions_main, "print what completes command lines in a shell",
    "bash|zsh|fish [-- WORD...]",
    "Print a script that completes command lines of onepot in a shell. In a start-up file:\n"
    "'source <(onepot completions bash)', the same for zsh, 'onepot completions fish | "
    "source'.\n"
    "With WORDs: what the last one may become, for that script.\n"};

static struct {
    char **words;     /* of the command, in getopt's order */
    const char *word; /* to complete: the last one typed */
    const char *rest; /* of it, behind what stays: --option=, folders */
    const char *what; /* it stands for: an option's spelling, or the command's synopsis */
    bool behind_dashes;
    const char *kind; /* of the answer; empty once it is printed */
} typed = {.kind = "words\n"};

/* Print what the rest of the word may become, if it fits and harms no terminal. */
static void offer(const char *text, size_t len, const char *end, const char *description)
{
    const char *unsafe = strstr(typed.what, "=GLOB") ? "*?[\\" : "";
    if (len < strlen(typed.rest) || strncmp(text, typed.rest, strlen(typed.rest)) != 0 ||
        (text[0] == '-' && !typed.word[0] && !typed.behind_dashes)) /* would be an option */
        return;
    for (size_t i = 0, n; i < len; i += n)
        if (!(n = utf8_printable_length(text + i, len - i)) || strchr(unsafe, text[i]))
            return;
    printf("%s%.*s%.*s%s%s\n", typed.kind, (int)(typed.rest - typed.word), typed.word, (int)len,
           text, end, description);
    typed.kind = "";
}

/* Offer members of the first archive; '~' and $VAR are expanded. Is any word a file? */
static bool offer_members(void)
{
    const struct fileset_options options = {.names_only = true, .only_ready = true};
    const char *slash = strrchr(typed.rest, '/'), *rest = slash ? slash + 1 : typed.rest, *name;
    struct fileset *fileset;
    char path[PATH_MAX];
    uint32_t i, first, count;
    struct node node;
    struct stat st;
    size_t len;
    int r = 1; /* there is no file */
    for (char **w = typed.words + optind; r != 0 && *w && *w != typed.word; w++) {
        len = strcspn(*w, "/");
        snprintf(path, sizeof(path), "%.*s", (int)len, *w);
        const char *value = getenv(*path == '$' ? path + 1 : strcmp(path, "~") ? "" : "HOME");
        snprintf(path, sizeof(path), "%s%s", value ? value : "", *w + (value ? len : 0));
        if (stat(path, &st) == 0 && S_ISREG(st.st_mode))
            r = fileset_open(path, &options, NULL, &fileset);
    }
    if (r != 0)
        return r < 0;
    snprintf(path, sizeof(path), "%.*s", (int)(rest - typed.rest), typed.rest);
    typed.rest = rest;
    if (index_follow(fileset->index, INDEX_ROOT, path, NULL, &i) == 0 &&
        index_children(fileset->index, i, &first, &count) == 0)
        for (i = first; i < first + count; i++)
            if (index_name(fileset->index, i, &name, &len) == 0 &&
                index_node(fileset->index, i, &node) == 0)
                offer(name, len, S_ISDIR(node.mode) ? "/" : "", "");
    fileset_close(fileset);
    return true;
}

/* Offer what the word may become, or leave that to the shell, by the table and the synopsis. */
static void completions_see(const struct cli_command *command, const struct cli_option *options,
                            const struct cli_option *option, const char *value)
{
    bool is_value = value && strchr(value, '\0') == strchr(typed.word, '\0');
    bool is_first = typed.words[optind] == typed.word;
    const char *what = typed.what = is_value ? option->spelling : command->synopsis;
    typed.rest = is_value ? value : typed.word;
    if (!is_value && !typed.behind_dashes && typed.word[0] == '-') {
        for (; options->spelling; options++) {
            const char *name = strstr(options->spelling, "--");
            size_t len = name ? strcspn(name, "[=") : 0;
            if (options->help && options->spelling[1] != '-')
                offer(options->spelling, 2, "\t", options->help);
            if (options->help && name)
                offer(name, len + (name[len] == '='), "\t", options->help);
        }
        return;
    }
    bool members = strstr(what, "=GLOB") || strstr(what, "=PATH") || strstr(what, "PATH...");
    bool has_file = members && offer_members();
    for (size_t i = 0; is_value && option->words && option->words[i]; i++)
        offer(option->words[i], strlen(option->words[i]), "", "");
    for (size_t i = 0; is_first && strstr(what, "[COMMAND]") && cli_commands[i]; i++)
        if (cli_commands[i]->run)
            offer(cli_commands[i]->name, strlen(cli_commands[i]->name), "\t",
                  cli_commands[i]->summary);
    for (size_t i = 0; is_first && strstr(what, "bash|") && carried_completions[i].name; i++)
        offer(carried_completions[i].name, strlen(carried_completions[i].name), "", "");
    FILE *mounts = strstr(what, "MOUNTPOINT") ? setmntent("/proc/self/mounts", "r") : NULL;
    for (struct mntent *m; mounts && (m = getmntent(mounts));)
        if (strcmp(m->mnt_type, "fuse.onepot") == 0)
            offer(m->mnt_dir, strlen(m->mnt_dir), "", "");
    if (mounts)
        endmntent(mounts);
    if (!*typed.kind || (has_file && (typed.behind_dashes || !strstr(what, "ARCHIVE..."))))
        return;
    if (typed.behind_dashes && strstr(what, "-- COMMAND"))
        typed.kind = "programs\n";
    else if (strstr(what, "=DIR"))
        typed.kind = "directories\n";
    else if (strstr(what, "=FILE") || strstr(what, "=LIST") || strstr(what, "=OUT") ||
             strstr(what, "SRC") || strstr(what, "MOUNTPOINT") || strstr(what, "ARCHIVE"))
        typed.kind = "files\n";
}

static int completions_main(int argc, char **argv)
{
    const struct cli_option options[] = {{NULL}};
    const struct carried *shell = carried_completions;
    int status = cli_parse(&command_completions, options, argc, argv);
    if (status != CLI_GO_ON)
        return status;
    while (shell->name && (optind == argc || strcmp(shell->name, argv[optind]) != 0))
        shell++;
    if (!shell->name)
        return cli_usage_error(&command_completions, "name a shell: bash, zsh or fish");
    if (optind == argc - 1)
        return fputs(shell->text, stdout), CLI_OK;
    argv[optind] = "help"; /* the first word is completed as the argument of `help` */
    int skipped = optind + (optind < argc - 2);
    typed.words = argv + skipped;
    typed.word = argv[argc - 1];
    typed.behind_dashes = cli_count_behind_dashes(argc - skipped, typed.words) > 0;
    cli_see = completions_see;
    optind = 1;
    cli_run_command(argc - skipped, typed.words);
    fputs(typed.kind, stdout);
    return CLI_OK;
}
