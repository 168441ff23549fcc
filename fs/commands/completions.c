/*
 * onepot completions: complete command lines in a shell.
 *
 * The scripts (completions.bash, .zsh, .fish) know no command and no option. At each press of
 * the tab key they call `onepot completions SHELL -- WORD...` with the words up to the cursor.
 * The first line of the answer is a kind: words (options, their values, commands), names
 * (members of an archive, mount points, which may need quotes), or files, directories and
 * programs, which the shell finds itself. Lines of words follow that fit, with a description
 * behind a tab.
 *
 * Options come from each command's own table (cli_show_options), and the words that stand for
 * arguments in the help (DIR, FILE, ARCHIVE, PATH) tell what these may be.
 *
 * Members come only from an index that is ready. Their names are untrusted: names with control
 * characters or invalid UTF-8 are left out, and names that would be taken for options.
 */
#include <limits.h>
#include <mntent.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "carried.h"
#include "cleanup.h"
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

enum {
    MEMBERS_SHOWN = 1000,
    ANSWER_SECONDS = 2, /* then the shell goes on without */
};

/* The words that stand for an option's value, and how the shell completes them. */
static const char *const kinds[][2] = {
    {"DIR", "directories"}, {"FILE", "files"}, {"LIST", "files"}, {"OUT", "files"}};

/* The word to complete, and its context. */
struct completion {
    const char *const *words; /* behind "onepot"; it is the last one */
    size_t count;
    const char *word;
    size_t kept;         /* its first bytes, which stay: --option=, directories of a path */
    bool is_glob;        /* the rest is a pattern */
    bool behind_dashes;  /* it follows "--" */
    const char *archive; /* the first file before it; NULL: there is none */
    const char *kind;    /* of the answer; NULL: it is printed already */
};

static bool starts_with(const char *text, const char *start)
{
    return strncmp(text, start, strlen(start)) == 0;
}

/* Print what the rest of the word may become, if it fits. */
static void offer(struct completion *c, const char *text, const char *description)
{
    if (!starts_with(text, c->word + c->kept))
        return;
    if (c->kind)
        puts(c->kind);
    c->kind = NULL;
    printf("%.*s%s%s%s\n", (int)c->kept, c->word, text, description ? "\t" : "",
           description ? description : "");
}

static void offer_commands(struct completion *c)
{
    for (const struct cli_command *const *known = cli_commands; *known; known++)
        if ((*known)->run)
            offer(c, (*known)->name, (*known)->summary);
}

/* The option that the word names: --NAME, --NAME=VALUE, or the last letter of -abc; or NULL. */
static const struct cli_option *option_of(const struct cli_option *o, const char *word)
{
    size_t len = strcspn(word, "=");
    for (; len > 1 && word[0] == '-' && o->spelling; o++) {
        struct cli_spelling s = cli_spelling_of(o);
        if (word[1] == '-'
                ? s.name && s.name_len == len - 2 && strncmp(s.name, word + 2, len - 2) == 0
                : s.letter && s.letter == word[strlen(word) - 1])
            return o;
    }
    return NULL;
}

static void offer_options(struct completion *c, const struct cli_option *options)
{
    static const struct cli_option common[] = {
        {"-h", "print help"}, {"--help", "print help"}, {"--version", "print the version"}};
    char word[64];
    for (const struct cli_option *o = options; o->spelling; o++) {
        struct cli_spelling s = cli_spelling_of(o);
        if (o->help && s.letter)
            offer(c, (char[]){'-', s.letter, '\0'}, o->help);
        snprintf(word, sizeof(word), "--%.*s%s", (int)s.name_len, s.name ? s.name : "",
                 s.argument == required_argument ? "=" : "");
        if (o->help && s.name)
            offer(c, word, o->help);
    }
    for (size_t i = option_of(options, "-h") ? 1 : 0; i < 3; i++)
        offer(c, common[i].spelling, common[i].help);
}

/* May the name stand in a command line, and on a terminal? */
static bool is_safe(const struct completion *c, const char *name)
{
    size_t len = strlen(name), n = 1;
    for (size_t i = 0; i < len && n > 0; i += n)
        n = c->is_glob && strchr("*?[\\", name[i]) ? 0
                                                   : utf8_printable_length(name + i, len - i);
    return n > 0;
}

static void offer_mounts(struct completion *c)
{
    FILE *table = setmntent("/proc/self/mounts", "r");
    c->kind = "names";
    for (struct mntent *m; table && (m = getmntent(table));)
        if (strcmp(m->mnt_type, "fuse.onepot") == 0 && is_safe(c, m->mnt_dir))
            offer(c, m->mnt_dir, NULL);
    if (table)
        endmntent(table);
}

/* The name of a member that fits, with a slash behind a directory's. */
static bool find_member(const struct completion *c, const struct index *index,
                        uint32_t position, char ret_name[INDEX_NAME_MAX + 2])
{
    const char *name, *start = c->word + c->kept;
    size_t len;
    struct node node;
    if (index_name(index, position, &name, &len) < 0 || len > INDEX_NAME_MAX ||
        len < strlen(start) || strncmp(name, start, strlen(start)) != 0 ||
        (c->kept == 0 && name[0] == '-' && !c->behind_dashes) ||
        index_node(index, position, &node) < 0)
        return false;
    sprintf(ret_name, "%.*s%s", (int)len, name, S_ISDIR(node.mode) ? "/" : "");
    return is_safe(c, ret_name);
}

/*
 * If there are too many, the last one is shown, too: names are sorted, so that its common start
 * with the first one is the common start of all.
 */
static void offer_children(struct completion *c, const struct index *index)
{
    const char *path = c->word + c->kept, *slash = strrchr(path, '/');
    size_t folder_len = slash ? (size_t)(slash + 1 - path) : 0, found = 0;
    auto_free char *folder = strndup(path, folder_len);
    char name[INDEX_NAME_MAX + 2], last[INDEX_NAME_MAX + 2] = "";
    uint32_t position, first, count;
    if (!folder || index_follow(index, INDEX_ROOT, folder, NULL, &position) < 0 ||
        index_children(index, position, &first, &count) < 0)
        return;
    c->kept += folder_len;
    for (uint32_t i = first; i < first + count; i++) {
        if (!find_member(c, index, i, name))
            continue;
        if (found++ < MEMBERS_SHOWN)
            offer(c, name, NULL);
        else
            strcpy(last, name);
    }
    if (last[0])
        offer(c, last, NULL);
}

/* Expand '~' or a variable at the start of a word, as the shell will. */
static const char *expand(const char *word, char path[PATH_MAX])
{
    size_t len = strcspn(word, "/");
    snprintf(path, PATH_MAX, "%.*s", (int)len, word);
    const char *value = strcmp(path, "~") == 0 ? getenv("HOME")
                        : path[0] == '$'       ? getenv(path + 1)
                                               : NULL;
    snprintf(path, PATH_MAX, "%s%s", value ? value : "", value ? word + len : word);
    return path;
}

/* None, unless the archive has an index that is ready. */
static void offer_members(struct completion *c)
{
    const struct fileset_options options = {.names_only = true, .only_ready = true};
    struct fileset *fileset;
    char path[PATH_MAX];
    if (!c->archive || fileset_open(expand(c->archive, path), &options, NULL, &fileset) < 0)
        return;
    c->kind = "names";
    offer_children(c, fileset->index);
    fileset_close(fileset);
}

static void complete_value(struct completion *c, const struct cli_option *o)
{
    const char *value = cli_spelling_of(o).value;
    c->is_glob = starts_with(value, "GLOB");
    for (size_t i = 0; o->words && o->words[i]; i++)
        offer(c, o->words[i], NULL);
    if (c->is_glob || starts_with(value, "PATH"))
        offer_members(c);
    for (size_t i = 0; c->kind && i < sizeof(kinds) / sizeof(kinds[0]); i++)
        if (starts_with(value, kinds[i][0]))
            c->kind = kinds[i][1];
}

static void complete_argument(struct completion *c, const char *synopsis)
{
    bool takes_files = strstr(synopsis, "ARCHIVE") || strstr(synopsis, "SRC") ||
                       strstr(synopsis, "MOUNTPOINT");
    if (c->archive && strstr(synopsis, "PATH...")) {
        offer_members(c);
        takes_files = strstr(synopsis, "ARCHIVE...") && !c->behind_dashes;
    } else if (strstr(synopsis, "MOUNTPOINT")) {
        offer_mounts(c);
    } else if (c->count == 2 && starts_with(synopsis, "[COMMAND]")) {
        offer_commands(c);
    } else if (c->count == 2 && starts_with(synopsis, "bash|")) {
        for (const struct carried *shell = carried_completions; shell->name; shell++)
            offer(c, shell->name, NULL);
    }
    if (c->kind && takes_files)
        c->kind = "files";
    if (c->behind_dashes && strstr(synopsis, "-- COMMAND"))
        c->kind = "programs";
}

/* The command's table tells what its words are. */
static void completions_see(void *ctx, const struct cli_command *u,
                            const struct cli_option *options)
{
    struct completion *c = ctx;
    const struct cli_option *o = NULL; /* whose value the word is */
    char path[PATH_MAX];
    struct stat st;
    for (size_t i = 1; i + 1 < c->count; i++)
        if (strcmp(c->words[i], "--") == 0)
            c->behind_dashes = true;
        else if (!c->archive && !c->behind_dashes &&
                 stat(expand(c->words[i], path), &st) == 0 && S_ISREG(st.st_mode))
            c->archive = c->words[i];
    if (!c->behind_dashes && c->count > 2)
        o = option_of(options, c->words[c->count - 2]);
    if (o && cli_spelling_of(o).argument != required_argument)
        o = NULL;
    const char *equals = starts_with(c->word, "--") ? strchr(c->word, '=') : NULL;
    if (!o && !c->behind_dashes && equals && (o = option_of(options, c->word)))
        c->kept = (size_t)(equals + 1 - c->word);
    if (o)
        complete_value(c, o);
    else if (!c->behind_dashes && c->word[0] == '-')
        offer_options(c, options);
    else
        complete_argument(c, u->synopsis);
}

static void completions_answer(struct completion *c)
{
    c->word = c->words[c->count - 1];
    c->kind = "words";
    signal(SIGALRM, SIG_DFL);
    alarm(ANSWER_SECONDS);
    if (c->count == 1 && c->word[0] == '-')
        offer_options(c, &(struct cli_option){NULL});
    else if (c->count == 1)
        offer_commands(c);
    cli_show_options(completions_see, c);
    for (const struct cli_command *const *known = cli_commands; *known; known++)
        if (c->count > 1 && (*known)->run && strcmp((*known)->name, c->words[0]) == 0)
            (*known)->run(1, (char *[]){(char *)(*known)->name, NULL});
    if (c->kind)
        puts(c->kind);
}

static int completions_main(int argc, char **argv)
{
    const struct cli_option options[] = {{NULL}};
    const struct carried *shell = carried_completions;
    int status = cli_parse(&command_completions, options, argc, argv);
    if (status != CLI_GO_ON)
        return status;
    if (argc == optind)
        return cli_usage_error(&command_completions, "name a shell: bash, zsh or fish");
    while (shell->name && strcmp(shell->name, argv[optind]) != 0)
        shell++;
    if (!shell->name)
        return cli_usage_error(&command_completions, "'%s' is not one of bash, zsh and fish",
                               argv[optind]);
    struct completion c = {.words = (const char *const *)argv + optind + 1,
                           .count = (size_t)(argc - optind - 1)};
    if (c.count == 0)
        fputs(shell->text, stdout);
    else
        completions_answer(&c);
    return CLI_OK;
}
