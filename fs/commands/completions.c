/*
 * onepot completions: complete command lines in a shell.
 *
 * The scripts know no command and no option. At each press of the tab key they call `onepot
 * completions SHELL -- WORD...` with the words up to the cursor. The first line of the answer
 * is a kind, the following ones are words that fit, with a description behind a tab:
 *
 *   words        options, their values, commands
 *   names        members of an archive, mount points, which may need quotes
 *   files, directories, programs
 *                no words follow, the shell finds them itself
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

/*
 * bash replaces $2, which begins behind the last '=' or ':' of the word, and takes names as
 * they are: in a quote that is open, names that it could not hold are left out.
 */
static const char bash_script[] =
    "# Completion of onepot for bash, made by 'onepot completions bash'.\n"
    "_onepot() {\n"
    "    local line=${COMP_LINE:0:COMP_POINT} end=${2//\\\\/} i words lines\n"
    "    local pair=\"'[^']*'|\\\"[^\\\"]*\\\"\" open=${line//\\\\?/}\n"
    "    while [[ $open =~ $pair ]]; do open=${open/\"${BASH_REMATCH[0]}\"/}; done\n"
    "    open=${open#\"${open%%[\\'\\\"]*}\"}\n"
    "    line=${line//\\\\\\'/$'\\1'} line=${line//\\\\\\\"/$'\\2'}\n"
    "    IFS=$' \\t\\n' read -a words <<<\"$line\"\n"
    "    [[ $line == *[[:space:]] ]] && words+=('')\n"
    "    words=(\"${words[@]//[\\'\\\"]/}\")\n"
    "    words=(\"${words[@]//$'\\1'/\\'}\")\n"
    "    words=(\"${words[@]//$'\\2'/\\\"}\")\n"
    "    mapfile -t lines < <(onepot completions bash -- \"${words[@]:1}\" 2>/dev/null)\n"
    "    [[ $2 == [\\'\\\"]* ]] && end=${end:1}\n"
    "    line=${words[${#words[@]} - 1]}\n"
    "    COMPREPLY=(\"${lines[@]:1}\") line=${line%\"$end\"}\n"
    "    COMPREPLY=(\"${COMPREPLY[@]%%$'\\t'*}\")\n"
    "    COMPREPLY=(\"${COMPREPLY[@]#\"$line\"}\")\n"
    "    for i in \"${!COMPREPLY[@]}\"; do\n"
    "        case $open in\n"
    "        \\'*) [[ ${COMPREPLY[i]} == *[\\'\\\\]* ]] && unset \"COMPREPLY[i]\" ;;\n"
    "        \\\"*) [[ ${COMPREPLY[i]} == *[\\\"\\$\\`\\\\!]* ]] && unset \"COMPREPLY[i]\" ;;\n"
    "        *) printf -v \"COMPREPLY[i]\" %q \"${COMPREPLY[i]}\" ;;\n"
    "        esac\n"
    "    done\n"
    "    case ${lines[0]} in\n"
    "    files) compopt -o default ;;\n"
    "    directories) compopt -o dirnames ;;\n"
    "    programs) compopt -o filenames; mapfile -t COMPREPLY < <(compgen -c -f -- \"$2\") ;;\n"
    "    esac\n"
    "    if [[ ${#COMPREPLY[@]} -eq 1 && ${COMPREPLY[0]} == *[=/] ]]; then compopt -o nospace; "
    "fi\n"
    "}\n"
    "complete -F _onepot onepot\n";

static const char zsh_script[] =
    "#compdef onepot\n"
    "# Completion of onepot for zsh, made by 'onepot completions zsh'.\n"
    "_onepot() {\n"
    "    local -a lines open\n"
    "    lines=(\"${(@f)$(onepot completions zsh -- \"${(@Q)words[2,CURRENT-1]}\" "
    "\"${(Q)PREFIX}\" 2>/dev/null)}\")\n"
    "    case $lines[1] in\n"
    "    files) compset -P 1 '--*='; _files ;;\n"
    "    directories) compset -P 1 '--*='; _files -/ ;;\n"
    "    programs)\n"
    "        (( CURRENT -= ${words[(i)--]} ))\n"
    "        shift ${words[(i)--]} words\n"
    "        _normal\n"
    "        ;;\n"
    "    names)\n"
    "        shift lines\n"
    "        compadd -qS / -- ${${(M)lines:#*/}%/}\n"
    "        compadd -- ${lines:#*/}\n"
    "        ;;\n"
    "    words)\n"
    "        lines=(${lines[2,-1]/$'\\t'/:}) open=(${(M)lines:#*=:*}) lines=(${lines:|open})\n"
    "        _describe word lines -- open -S ''\n"
    "        ;;\n"
    "    esac\n"
    "    (( compstate[nmatches] ))\n"
    "}\n"
    "if [[ $funcstack[1] == _onepot ]]; then _onepot \"$@\"; else compdef _onepot onepot; fi\n";

static const char fish_script[] =
    "# Completion of onepot for fish, made by 'onepot completions fish'.\n"
    "function __onepot\n"
    "    set -l words (commandline -opc)[2..-1]\n"
    "    set -l word (commandline -ct)\n"
    "    set -l lines (onepot completions fish -- $words (string unescape -- $word) "
    "2>/dev/null)\n"
    "    set -l option (string match -r -- '^--[^=]*=|^' $word)\n"
    "    set -l value (string replace -r -- '^--[^=]*=' '' $word)\n"
    "    switch \"$lines[1]\"\n"
    "        case files\n"
    "            printf '%s\\n' $option(complete -C \"'' $value\")\n"
    "        case directories\n"
    "            printf '%s\\n' $option(complete -C \"'' $value\" | string match '*/')\n"
    "        case programs\n"
    "            set -e words[1..(contains -i -- -- $words)]\n"
    "            complete -C (string join ' ' -- (string escape -- $words) $word)\n"
    "        case '*'\n"
    "            printf '%s\\n' $lines[2..-1]\n"
    "    end\n"
    "end\n"
    "complete -c onepot -f -a '(__onepot)'\n";

static const struct {
    const char *name, *script;
} shells[] = {{"bash", bash_script}, {"zsh", zsh_script}, {"fish", fish_script}};
#define SHELL_COUNT (sizeof(shells) / sizeof(shells[0]))

/* The word to complete, and its context. */
struct completion {
    const char *const *words; /* behind "onepot"; it is the last one */
    size_t count;
    const char *word;
    size_t value;        /* where in it the value of --option=value begins */
    bool is_glob;        /* that value is a pattern */
    bool behind_dashes;  /* it follows "--" */
    const char *archive; /* the first file before it; NULL: there is none */
    const char *kind;    /* of the answer; NULL: it is printed already */
};

static bool starts_with(const char *text, const char *start)
{
    return strncmp(text, start, strlen(start)) == 0;
}

/* A word that fits: the first `kept` bytes of the one to complete, and then `rest`. */
static void put(struct completion *c, size_t kept, const char *rest, size_t len,
                const char *end)
{
    if (c->kind)
        puts(c->kind);
    c->kind = NULL;
    printf("%.*s%.*s%s\n", (int)kept, c->word, (int)len, rest, end);
}

/* The same, if it fits. */
static void offer(struct completion *c, const char *word, const char *description)
{
    char end[256];
    snprintf(end, sizeof(end), "%s%s", description ? "\t" : "", description ? description : "");
    if (starts_with(word, c->word + c->value))
        put(c, c->value, word, strlen(word), end);
}

static void offer_commands(struct completion *c)
{
    for (const struct cli_command *const *known = cli_commands; *known; known++)
        if ((*known)->run)
            offer(c, (*known)->name, (*known)->summary);
}

static void offer_options(struct completion *c, const struct cli_option *options)
{
    char word[64];
    for (const struct cli_option *o = options; o->spelling; o++) {
        struct cli_spelling s = cli_spelling_of(o);
        snprintf(word, sizeof(word), "-%c", s.letter);
        if (o->help && s.letter)
            offer(c, word, o->help);
        snprintf(word, sizeof(word), "--%.*s%s", (int)s.name_len, s.name ? s.name : "",
                 s.argument == required_argument ? "=" : "");
        if (o->help && s.name)
            offer(c, word, o->help);
    }
    if (!cli_has_letter(options, 'h'))
        offer(c, "-h", "print help");
    offer(c, "--help", "print help");
    offer(c, "--version", "print the version");
}

/* May the name stand in a command line, and on a terminal? */
static bool is_safe(const struct completion *c, const char *name, size_t len)
{
    size_t n = 1;
    for (size_t i = 0; i < len && n > 0; i += n)
        n = c->is_glob && strchr("*?[\\", name[i]) ? 0
                                                   : utf8_printable_length(name + i, len - i);
    return n > 0;
}

static void offer_mounts(struct completion *c)
{
    c->kind = "names";
    FILE *table = setmntent("/proc/self/mounts", "r");
    for (struct mntent *m; table && (m = getmntent(table));)
        if (strcmp(m->mnt_type, "fuse.onepot") == 0 &&
            is_safe(c, m->mnt_dir, strlen(m->mnt_dir)))
            offer(c, m->mnt_dir, NULL);
    if (table)
        endmntent(table);
}

/* ---- members ---- */

/* Does it fit? Then it is printed, if `is_shown`. */
static bool fits_member(struct completion *c, const struct index *index, uint32_t position,
                        size_t kept, bool is_shown)
{
    const char *name, *start = c->word + kept;
    size_t len;
    struct node node;
    if (index_name(index, position, &name, &len) < 0 || len < strlen(start) ||
        memcmp(name, start, strlen(start)) != 0 || !is_safe(c, name, len) ||
        (kept == 0 && name[0] == '-' && !c->behind_dashes) ||
        index_node(index, position, &node) < 0)
        return false;
    if (is_shown)
        put(c, kept, name, len, S_ISDIR(node.mode) ? "/" : "");
    return true;
}

/*
 * If there are too many, the last one is shown, too: names are sorted, so that its common start
 * with the first one is the common start of all.
 */
static void offer_children(struct completion *c, const struct index *index)
{
    const char *path = c->word + c->value, *slash = strrchr(path, '/');
    size_t kept = slash ? (size_t)(slash + 1 - c->word) : c->value, found = 0;
    auto_free char *folder = strndup(path, kept - c->value);
    uint32_t position, first, count, last = 0;
    if (!folder || index_follow(index, INDEX_ROOT, folder, NULL, &position) < 0 ||
        index_children(index, position, &first, &count) < 0)
        return;
    for (uint32_t i = first; i < first + count; i++)
        if (fits_member(c, index, i, kept, found < MEMBERS_SHOWN) && ++found)
            last = i;
    if (found > MEMBERS_SHOWN)
        fits_member(c, index, last, kept, true);
}

/* Expand '~' or a variable at the start of a word, as the shell will. */
static void expand(const char *word, char *path, size_t size)
{
    size_t len = strcspn(word, "/");
    snprintf(path, size, "%.*s", (int)len, word);
    const char *value = strcmp(path, "~") == 0 ? getenv("HOME")
                        : path[0] == '$'       ? getenv(path + 1)
                                               : NULL;
    snprintf(path, size, "%s%s", value ? value : "", value ? word + len : word);
}

/* None, unless the archive has an index that is ready. */
static void offer_members(struct completion *c)
{
    const struct pot_options options = {.names_only = true, .only_ready = true};
    struct pot *pot;
    char path[PATH_MAX];
    if (!c->archive)
        return;
    expand(c->archive, path, sizeof(path));
    if (pot_open(path, &options, NULL, &pot) < 0)
        return;
    c->kind = "names";
    offer_children(c, pot->index);
    pot_close(pot);
}

/* ---- kinds of words ---- */

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

static void complete_value(struct completion *c, const struct cli_option *o)
{
    const char *value = cli_spelling_of(o).value;
    c->is_glob = starts_with(value, "GLOB");
    for (size_t i = 0; o->words && o->words[i]; i++)
        offer(c, o->words[i], NULL);
    if (c->is_glob || starts_with(value, "PATH"))
        offer_members(c);
    else if (starts_with(value, "DIR"))
        c->kind = "directories";
    else if (starts_with(value, "FILE") || starts_with(value, "LIST") ||
             starts_with(value, "OUT"))
        c->kind = "files";
}

static void complete_argument(struct completion *c, const char *synopsis)
{
    bool takes_files = strstr(synopsis, "ARCHIVE") || strstr(synopsis, "SRC") ||
                       strstr(synopsis, "MOUNTPOINT");
    if (c->behind_dashes && strstr(synopsis, "-- COMMAND")) {
        c->kind = "programs";
    } else if (c->archive && strstr(synopsis, "PATH...")) {
        offer_members(c);
        takes_files = strstr(synopsis, "ARCHIVE...") && !c->behind_dashes;
    } else if (strstr(synopsis, "MOUNTPOINT")) {
        offer_mounts(c);
    } else if (c->count == 2 && starts_with(synopsis, "[COMMAND]")) {
        offer_commands(c);
    } else if (c->count == 2 && starts_with(synopsis, "bash|")) {
        for (size_t i = 0; i < SHELL_COUNT; i++)
            offer(c, shells[i].name, NULL);
    }
    if (c->kind && takes_files && strcmp(c->kind, "programs") != 0)
        c->kind = "files";
}

/* The command's table tells what its words are. */
static void completions_see(void *ctx, const struct cli_command *u,
                            const struct cli_option *options)
{
    struct completion *c = ctx;
    const struct cli_option *o = NULL; /* whose value the word is */
    char path[PATH_MAX];
    struct stat st;
    for (size_t i = 1; i + 1 < c->count; i++) {
        expand(c->words[i], path, sizeof(path));
        if (strcmp(path, "--") == 0)
            c->behind_dashes = true;
        else if (!c->archive && !c->behind_dashes && stat(path, &st) == 0 &&
                 S_ISREG(st.st_mode))
            c->archive = c->words[i];
    }
    if (!c->behind_dashes && c->count > 2)
        o = option_of(options, c->words[c->count - 2]);
    if (o && cli_spelling_of(o).argument != required_argument)
        o = NULL;
    if (!o && !c->behind_dashes && starts_with(c->word, "--") && strchr(c->word, '=')) {
        o = option_of(options, c->word);
        c->value = o ? (size_t)(strchr(c->word, '=') + 1 - c->word) : 0;
    }
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
    size_t shell = 0;
    int status = cli_parse(&command_completions, options, argc, argv);
    if (status != CLI_GO_ON)
        return status;
    if (argc == optind)
        return cli_usage_error(&command_completions, "name a shell: bash, zsh or fish");
    while (shell < SHELL_COUNT && strcmp(shells[shell].name, argv[optind]) != 0)
        shell++;
    if (shell == SHELL_COUNT)
        return cli_usage_error(&command_completions, "'%s' is not one of bash, zsh and fish",
                               argv[optind]);
    struct completion c = {.words = (const char *const *)argv + optind + 1,
                           .count = (size_t)(argc - optind - 1)};
    if (c.count == 0)
        fputs(shells[shell].script, stdout);
    else
        completions_answer(&c);
    return CLI_OK;
}
