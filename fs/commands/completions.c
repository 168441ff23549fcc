/*
 * onepot completions: print a script that completes command lines in a shell.
 *
 * Every command shows its own table of options (cli_show_options), so that the scripts know
 * what the program knows. What an option's argument or a command's arguments may be is told by
 * the words that stand for them in the help: DIR, FILE, ARCHIVE, MOUNTPOINT.
 */
#include <string.h>

#include "cli.h"
#include "commands.h"

static const struct cli_usage usage = {
    "completions", "bash|zsh|fish",
    "Print a script that completes command lines of onepot in a shell. In a start-up file:\n"
    "'source <(onepot completions bash)', the same for zsh, 'onepot completions fish | "
    "source'.\n"};

enum kind {
    KIND_NOTHING, /* nothing is known of it */
    KIND_FILES,
    KIND_DIRECTORIES,
    KIND_WORDS,
    KIND_MOUNTS,
    KIND_COMMANDS, /* of onepot */
};

struct shell {
    const char *name;
    void (*begin)(void);
    /* A command; its options follow, each by `option`. */
    void (*command)(const struct cli_usage *usage, const struct cli_option *options);
    void (*end)(void);
};

/* ---- what a word may be ---- */

static bool starts_with(const char *text, const char *start)
{
    return strncmp(text, start, strlen(start)) == 0;
}

static enum kind kind_of_option(const struct cli_option *o)
{
    const char *value = cli_spelling_of(o).value;
    if (o->words)
        return KIND_WORDS;
    if (starts_with(value, "DIR"))
        return KIND_DIRECTORIES;
    return starts_with(value, "FILE") || starts_with(value, "LIST") || starts_with(value, "OUT")
               ? KIND_FILES
               : KIND_NOTHING;
}

static enum kind kind_of_arguments(const struct cli_usage *u)
{
    if (strstr(u->synopsis, "MOUNTPOINT"))
        return KIND_MOUNTS;
    if (strstr(u->synopsis, "ARCHIVE") || strstr(u->synopsis, "SRC"))
        return KIND_FILES;
    if (strchr(u->synopsis, '|') && u->synopsis[0] != '[')
        return KIND_WORDS;
    return starts_with(u->synopsis, "[COMMAND]") ? KIND_COMMANDS : KIND_NOTHING;
}

/* "a|b|c" with blanks. */
static void print_choices(const char *synopsis)
{
    for (; *synopsis; synopsis++)
        putchar(*synopsis == '|' ? ' ' : *synopsis);
}

static void print_words(const char *const *words)
{
    for (size_t i = 0; words[i]; i++)
        printf("%s%s", i ? " " : "", words[i]);
}

static void print_commands(void)
{
    for (const struct command *c = command_list; c->name; c++)
        if (c->run)
            printf("%s%s", c == command_list ? "" : " ", c->name);
}

/* Within single quotes: `special` characters behind a backslash, and a quote as `quote`. */
static void print_quoted(const char *text, const char *special, const char *quote)
{
    for (; *text; text++) {
        if (*text == '\'') {
            fputs(quote, stdout);
            continue;
        }
        if (strchr(special, *text))
            putchar('\\');
        putchar(*text);
    }
}

/* ---- bash ---- */

static void bash_begin(void)
{
    printf("# Completion of onepot %s for bash, made by 'onepot completions bash'.\n",
           ONEPOT_VERSION);
    fputs("_onepot_mounts() {\n"
          "    local path type\n"
          "    while read -r _ path type _; do\n"
          "        if [ \"$type\" = fuse.onepot ]; then printf '%b\\n' \"$path\"; fi\n"
          "    done </proc/self/mounts\n"
          "}\n"
          "\n"
          "_onepot() {\n"
          "    local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]}\n"
          "    local command=${COMP_WORDS[1]} options='-h --help --version' words kind i\n"
          "    COMPREPLY=()\n"
          "    # bash makes three words of --option=value.\n"
          "    if [ \"$word\" = = ]; then\n"
          "        word='' before+='='\n"
          "    elif [ \"$before\" = = ]; then\n"
          "        before=${COMP_WORDS[COMP_CWORD - 2]}=\n"
          "    fi\n"
          "    # A name that is quoted while it is typed; readline quotes what it becomes.\n"
          "    case $word in\n"
          "    \\\"* | \\'*) word=${word:1} ;;\n"
          "    *) word=${word//\\\\/} ;;\n"
          "    esac\n"
          "    if [ \"$COMP_CWORD\" -eq 1 ]; then command='' kind=commands; fi\n"
          "    case $command in\n",
          stdout);
}

static const char *const bash_kinds[] = {
    [KIND_NOTHING] = "nothing", [KIND_FILES] = "files",   [KIND_DIRECTORIES] = "directories",
    [KIND_WORDS] = "words",     [KIND_MOUNTS] = "mounts", [KIND_COMMANDS] = "commands",
};

/* The pattern of the word before an argument: "--output | --output= | -o". */
static void bash_print_before(const struct cli_spelling *s)
{
    const char *bar = "";
    if (s->argument == required_argument && s->letter) {
        printf("-%c", s->letter);
        bar = " | ";
    }
    if (s->name && s->argument == required_argument) {
        printf("%s--%.*s", bar, (int)s->name_len, s->name);
        bar = " | ";
    }
    if (s->name)
        printf("%s--%.*s=", bar, (int)s->name_len, s->name);
}

static void bash_print_argument(const struct cli_option *o)
{
    struct cli_spelling s = cli_spelling_of(o);
    printf("        ");
    bash_print_before(&s);
    printf(") kind=%s", bash_kinds[kind_of_option(o)]);
    if (o->words) {
        printf(" words='");
        print_words(o->words);
        putchar('\'');
    }
    printf(" options='' ;;\n");
}

static void bash_command(const struct cli_usage *u, const struct cli_option *options)
{
    printf("    %s)\n        kind=%s", u->name, bash_kinds[kind_of_arguments(u)]);
    if (kind_of_arguments(u) == KIND_WORDS) {
        printf(" words='");
        print_choices(u->synopsis);
        putchar('\'');
    }
    printf("\n        options+='");
    for (const struct cli_option *o = options; o->spelling; o++) {
        struct cli_spelling s = cli_spelling_of(o);
        if (o->help && s.letter)
            printf(" -%c", s.letter);
        if (o->help && s.name)
            printf(" --%.*s%s", (int)s.name_len, s.name,
                   s.argument == required_argument ? "=" : "");
    }
    printf("'\n        case $before in\n");
    for (const struct cli_option *o = options; o->spelling; o++)
        if (o->help && cli_spelling_of(o).argument != no_argument)
            bash_print_argument(o);
    printf("        esac\n        ;;\n");
}

static void bash_end(void)
{
    fputs("    esac\n"
          "    # Behind '--' there is a command of one's own.\n"
          "    for ((i = 2; i < COMP_CWORD; i++)); do\n"
          "        if [ \"${COMP_WORDS[i]}\" = -- ]; then kind=programs options=''; fi\n"
          "    done\n"
          "    if [[ $word == -* && $options ]]; then kind=words words=$options; fi\n"
          "    case $kind in\n"
          "    words) mapfile -t COMPREPLY < <(compgen -W \"$words\" -- \"$word\") ;;\n"
          "    files) mapfile -t COMPREPLY < <(compgen -f -- \"$word\") ;;\n"
          "    directories) mapfile -t COMPREPLY < <(compgen -d -- \"$word\") ;;\n"
          "    programs) mapfile -t COMPREPLY < <(compgen -c -f -- \"$word\") ;;\n"
          "    mounts)\n"
          "        mapfile -t COMPREPLY < <(compgen -f -- \"$word\")\n"
          "        while IFS= read -r i; do\n"
          "            if [[ $i == \"$word\"* ]]; then COMPREPLY+=(\"$i\"); fi\n"
          "        done < <(_onepot_mounts)\n"
          "        ;;\n"
          "    commands) mapfile -t COMPREPLY < <(compgen -W '",
          stdout);
    print_commands();
    fputs("' -- \"$word\") ;;\n"
          "    esac\n"
          "    case $kind in files | directories | mounts) compopt -o filenames ;; esac\n"
          "    if [[ ${#COMPREPLY[@]} -eq 1 && ${COMPREPLY[0]} == --*= ]]; then compopt -o "
          "nospace; fi\n"
          "}\n"
          "complete -F _onepot onepot\n",
          stdout);
}

/* ---- zsh ---- */

static void zsh_begin(void)
{
    printf("#compdef onepot\n"
           "# Completion of onepot %s for zsh, made by 'onepot completions zsh'.\n",
           ONEPOT_VERSION);
    fputs("_onepot_mounts() {\n"
          "    local -a mounts\n"
          "    mounts=(${(f)\"$(while read -r _ path type _; do\n"
          "        [[ $type == fuse.onepot ]] && printf '%b\\n' $path\n"
          "    done </proc/self/mounts)\"})\n"
          "    (( $#mounts )) && compadd -- $mounts\n"
          "    _files\n"
          "}\n"
          "\n"
          "_onepot() {\n"
          "    local -a names # 'commands' would hide zsh's own\n"
          "    names=(\n",
          stdout);
    for (const struct command *c = command_list; c->name; c++) {
        if (!c->run)
            continue;
        printf("        '%s:", c->name);
        print_quoted(c->summary, "\\", "'\\''");
        puts("'");
    }
    fputs("    )\n"
          "    if (( CURRENT == 2 )); then\n"
          "        _describe command names\n"
          "        return\n"
          "    fi\n"
          "    shift words\n"
          "    (( CURRENT-- ))\n"
          "    case $words[1] in\n",
          stdout);
}

static void zsh_print_action(enum kind kind, const char *const *words)
{
    switch (kind) {
    case KIND_FILES:
        printf("_files");
        break;
    case KIND_DIRECTORIES:
        printf("_files -/");
        break;
    case KIND_MOUNTS:
        printf("_onepot_mounts");
        break;
    case KIND_COMMANDS:
        printf("(");
        print_commands();
        printf(")");
        break;
    case KIND_WORDS:
        printf("(");
        print_words(words);
        printf(")");
        break;
    case KIND_NOTHING:
        printf(" ");
        break;
    }
}

/* '*'{-o+,--output=}'[help]:OUT:_files' */
static void zsh_print_option(const struct cli_option *o)
{
    struct cli_spelling s = cli_spelling_of(o);
    const char *long_mark = s.argument == required_argument   ? "="
                            : s.argument == optional_argument ? "=-"
                                                              : "";
    const char *letter_mark = s.argument == required_argument ? "+" : "";
    printf(" \\\n            '*'");
    if (s.letter && s.name)
        printf("{-%c%s,--%.*s%s}", s.letter, letter_mark, (int)s.name_len, s.name, long_mark);
    else if (s.name)
        printf("--%.*s%s", (int)s.name_len, s.name, long_mark);
    else
        printf("-%c%s", s.letter, letter_mark);
    printf("'[");
    print_quoted(o->help, "[]:\\", "'\\''");
    putchar(']');
    if (s.argument != no_argument) {
        printf(s.argument == optional_argument ? "::" : ":");
        printf("%.*s:", (int)strcspn(s.value, "[]:"), s.value);
        zsh_print_action(kind_of_option(o), o->words);
    }
    putchar('\'');
}

static void zsh_command(const struct cli_usage *u, const struct cli_option *options)
{
    printf("    %s)\n", u->name);
    if (strstr(u->synopsis, "-- COMMAND"))
        fputs("        local -i dashes=${words[(ie)--]}\n"
              "        if (( dashes < CURRENT )); then\n"
              "            shift $dashes words\n"
              "            (( CURRENT -= dashes ))\n"
              "            _normal\n"
              "            return\n"
              "        fi\n",
              stdout);
    fputs("        _arguments -s \\\n            '(-)'{-h,--help}'[print help]' "
          "'(-)--version[print the version]'",
          stdout);
    for (const struct cli_option *o = options; o->spelling; o++)
        if (o->help)
            zsh_print_option(o);
    if (kind_of_arguments(u) == KIND_WORDS) {
        printf(" \\\n            ':argument:(");
        print_choices(u->synopsis);
        printf(")'");
    } else if (kind_of_arguments(u) != KIND_NOTHING) {
        printf(" \\\n            '*:argument:");
        zsh_print_action(kind_of_arguments(u), NULL);
        putchar('\'');
    }
    printf("\n        ;;\n");
}

static void zsh_end(void)
{
    fputs("    esac\n"
          "}\n"
          "\n"
          "if [[ $funcstack[1] == _onepot ]]; then _onepot \"$@\"; else compdef _onepot "
          "onepot; fi\n",
          stdout);
}

/* ---- fish ---- */

static void fish_begin(void)
{
    printf(
        "# Completion of onepot %s for fish, made by 'onepot completions fish'.\n"
        "function __onepot_command\n"
        "    set -l words (commandline -opc)\n"
        "    test (count $words) -gt 1; and test $words[2] = $argv[1]; and not contains -- -- "
        "$words\n"
        "end\n"
        "function __onepot_behind_dashes\n"
        "    contains -- -- (commandline -opc)\n"
        "end\n"
        "function __onepot_rest\n"
        "    set -l words (commandline -opc)\n"
        "    set -l rest $words[(math (contains -i -- -- $words) + 1)..-1]\n"
        "    complete -C (string trim -l -- (string join ' ' -- (string escape -- $rest) "
        "(commandline -ct | string collect -a)))\n"
        "end\n"
        "complete -c onepot -f\n"
        "complete -c onepot -n __onepot_behind_dashes -x -a '(__onepot_rest)'\n",
        ONEPOT_VERSION);
    for (const struct command *c = command_list; c->name; c++) {
        if (!c->run)
            continue;
        printf("complete -c onepot -n __fish_use_subcommand -a %s -d '", c->name);
        print_quoted(c->summary, "\\", "\\'");
        puts("'");
    }
}

/* The end of a line `complete ...`, for an argument. */
static void fish_print_kind(enum kind kind, const char *const *words)
{
    switch (kind) {
    case KIND_FILES:
        printf(" -F");
        break;
    case KIND_MOUNTS:
        printf(
            " -F -a '(string match -rg \"^\\S+ (\\S+) fuse\\.onepot \" </proc/self/mounts)'");
        break;
    case KIND_DIRECTORIES:
        printf(" -f -a '(__fish_complete_directories)'");
        break;
    case KIND_WORDS:
        printf(" -f -a '");
        print_words(words);
        putchar('\'');
        break;
    case KIND_COMMANDS:
        printf(" -f -a '");
        print_commands();
        putchar('\'');
        break;
    case KIND_NOTHING:
        break;
    }
}

static void fish_command(const struct cli_usage *u, const struct cli_option *options)
{
    enum kind arguments = kind_of_arguments(u);
    char when[96];
    snprintf(when, sizeof(when), "complete -c onepot -n '__onepot_command %s'", u->name);
    printf("%s -s h -l help -d 'print help'\n", when);
    for (const struct cli_option *o = options; o->spelling; o++) {
        struct cli_spelling s = cli_spelling_of(o);
        if (!o->help)
            continue;
        fputs(when, stdout);
        if (s.letter)
            printf(" -s %c", s.letter);
        if (s.name)
            printf(" -l %.*s", (int)s.name_len, s.name);
        if (s.argument == required_argument)
            printf(" -r");
        if (s.argument != no_argument)
            fish_print_kind(kind_of_option(o), o->words);
        printf(" -d '");
        print_quoted(o->help, "\\", "\\'");
        puts("'");
    }
    if (arguments == KIND_WORDS) {
        printf("%s -a '", when);
        print_choices(u->synopsis);
        puts("'");
    } else if (arguments != KIND_NOTHING) {
        fputs(when, stdout);
        fish_print_kind(arguments, NULL);
        putchar('\n');
    }
}

static void fish_end(void) {}

static const struct shell shells[] = {
    {"bash", bash_begin, bash_command, bash_end},
    {"zsh", zsh_begin, zsh_command, zsh_end},
    {"fish", fish_begin, fish_command, fish_end},
};
#define SHELL_COUNT (sizeof shells / sizeof shells[0])

/* ---- the command ---- */

static void completions_see(void *ctx, const struct cli_usage *u,
                            const struct cli_option *options)
{
    const struct shell *shell = ctx;
    shell->command(u, options);
}

static void completions_print(const struct shell *shell)
{
    shell->begin();
    cli_show_options(completions_see, (void *)shell);
    for (const struct command *c = command_list; c->name; c++) {
        char *argv[] = {(char *)c->name, NULL};
        if (c->run)
            c->run(1, argv);
    }
    cli_show_options(NULL, NULL);
    shell->end();
}

int command_completions(int argc, char **argv)
{
    const struct cli_option options[] = {{NULL}};
    int status = cli_parse(&usage, options, argc, argv);
    if (status != CLI_GO_ON)
        return status;
    if (argc - optind != 1)
        return cli_usage_error(&usage, "name one shell: bash, zsh or fish");
    for (size_t i = 0; i < SHELL_COUNT; i++)
        if (strcmp(shells[i].name, argv[optind]) == 0) {
            completions_print(&shells[i]);
            return CLI_OK;
        }
    return cli_usage_error(&usage, "'%s' is not one of bash, zsh and fish", argv[optind]);
}
