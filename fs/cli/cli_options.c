/*
 * Reads a command line: the command, by main's table (commands ask for others without knowing
 * them), its options, by the command's table, the words and numbers that they take, and the
 * words of a command that takes archives and paths in them.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "backend.h"
#include "cleanup.h"
#include "cli.h"
#include "cpus.h"
#include "numbers.h"

#define LONGS_MAX 64

/* An error about an unknown long option, with the nearest that exists. */
static int unknown_long(const struct cli_command *command, const char *given,
                        const struct option *longs)
{
    const char *names[LONGS_MAX + 1] = {NULL};
    for (size_t i = 0; i < LONGS_MAX && longs[i].name; i++)
        names[i] = longs[i].name;
    size_t len = strcspn(given + 2, "=");
    auto_free char *word = strndup(given + 2, len);
    const char *near = word ? cli_nearest(word, names) : NULL;
    if (near)
        return cli_usage_error(command, "there is no option '%.*s', did you mean '--%s'?",
                               (int)len + 2, given, near);
    return cli_usage_error(command, "there is no option '%.*s'", (int)len + 2, given);
}

/* An error about an unknown letter, with the long option that it may stand for. */
static int unknown_letter(const struct cli_command *command, char letter,
                          const struct option *longs)
{
    const struct option *found = NULL;
    unsigned count = 0;
    for (; longs->name; longs++)
        if (longs->name[0] == letter && longs->name[1]) {
            found = longs;
            count++;
        }
    if (count == 1)
        return cli_usage_error(command, "there is no option '-%c', did you mean '--%s'?",
                               letter, found->name);
    return cli_usage_error(command, "there is no option '-%c'", letter);
}

/* getopt returned '?' or ':': print the error. */
static int bad_option(const struct cli_command *command, int opt, char **argv,
                      const struct option *longs)
{
    const char *given = argv[optind - 1];
    bool is_long = given[0] == '-' && given[1] == '-';
    if (opt == ':' && is_long)
        return cli_usage_error(command, "option '%s' needs an argument", given);
    if (opt == ':')
        return cli_usage_error(command, "option '-%c' needs an argument", optopt);
    if (optopt && is_long)
        return cli_usage_error(command, "option '%.*s' takes no argument",
                               (int)strcspn(given, "="), given);
    if (optopt)
        return unknown_letter(command, (char)optopt, longs);
    return unknown_long(command, given, longs);
}

uint64_t cli_offset;
uint32_t cli_max_ratio;
bool cli_ignores_zeros;
bool cli_plain;

int cli_take_max_ratio(const struct cli_command *command, void *ctx, const char *text)
{
    (void)ctx;
    uint64_t number = FILESET_RATIO_OFF;
    int r = strcmp(text, "off") == 0 ? 0
                                     : cli_number_option(command, "--max-ratio", text, 1,
                                                         FILESET_RATIO_OFF - 1, &number);
    cli_max_ratio = (uint32_t)number;
    return r;
}

#define NEAREST_MAX 32

/*
 * The number of insertions, deletions, replacements and swaps of neighbours that turn a into b.
 */
static unsigned word_distance(const char *a, size_t a_len, const char *b, size_t b_len)
{
    unsigned d[NEAREST_MAX + 1][NEAREST_MAX + 1];
    for (unsigned i = 0; i <= a_len; i++)
        d[i][0] = i;
    for (unsigned j = 0; j <= b_len; j++)
        d[0][j] = j;
    for (size_t i = 1; i <= a_len; i++) {
        for (size_t j = 1; j <= b_len; j++) {
            unsigned replaced = d[i - 1][j - 1] + (a[i - 1] != b[j - 1]);
            d[i][j] = min_u32(min_u32(d[i - 1][j], d[i][j - 1]) + 1, replaced);
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] &&
                d[i - 2][j - 2] + 1 < d[i][j])
                d[i][j] = d[i - 2][j - 2] + 1;
        }
    }
    return d[a_len][b_len];
}

const char *cli_nearest(const char *word, const char *const *candidates)
{
    size_t len = strlen(word);
    if (len == 0 || len > NEAREST_MAX)
        return NULL;
    const char *best = NULL;
    unsigned best_distance = len <= 3 ? 1 : len <= 6 ? 2 : 3;
    for (; *candidates; candidates++) {
        size_t candidate_len = strlen(*candidates);
        if (candidate_len > NEAREST_MAX)
            continue;
        unsigned d = word_distance(word, len, *candidates, candidate_len);
        if (len >= 2 && strncmp(*candidates, word, len) == 0)
            d = 1; /* a prefix of it */
        if (d < best_distance || (d == best_distance && !best && d < candidate_len)) {
            best = *candidates;
            best_distance = d;
        }
    }
    return best;
}

int cli_parse_number(const char *text, uint64_t min, uint64_t max, uint64_t *ret_number)
{
    uint64_t number;
    const char *rest;
    int r = digits_parse(text, &number, &rest);
    if (r < 0)
        return r;
    if (*rest)
        return -EINVAL;
    if (number < min || number > max)
        return -ERANGE;
    *ret_number = number;
    return 0;
}

int cli_parse_part(const char *text, uint64_t most, uint64_t *ret_part, uint64_t *ret_parts)
{
    uint64_t part, parts = 0;
    const char *rest;
    int r = digits_parse(text, &part, &rest);
    if (r == 0)
        r = *rest == '/' ? cli_parse_number(rest + 1, 1, most, &parts) : -EINVAL;
    if (r < 0 || part >= parts)
        return r < 0 ? r : -ERANGE;
    *ret_part = part;
    *ret_parts = parts;
    return 0;
}

int cli_size_option(const struct cli_command *command, const char *option, const char *text,
                    uint64_t *ret_bytes)
{
    int r = size_parse(text, ret_bytes);
    if (r == -ERANGE)
        return cli_usage_error(command, "%s: '%s' is too large", option, text);
    if (r < 0)
        return cli_usage_error(
            command, "%s: '%s' is not a size; write a number with K, M, G or T", option, text);
    return 0;
}

int cli_number_option(const struct cli_command *command, const char *option, const char *text,
                      uint64_t min, uint64_t max, uint64_t *ret_number)
{
    int r = cli_parse_number(text, min, max, ret_number);
    if (r == -ERANGE)
        return cli_usage_error(command, "%s: '%s' is not between %" PRIu64 " and %" PRIu64,
                               option, text, min, max);
    if (r < 0)
        return cli_usage_error(command, "%s: '%s' is not a number", option, text);
    return 0;
}

struct fileset_together cli_together;
const char *const cli_conflict_words[] = {[FILESET_CONFLICT_ERROR] = "error",
                                          [FILESET_CONFLICT_FIRST] = "first",
                                          [FILESET_CONFLICT_LAST] = "last",
                                          NULL};

const char *cli_name_of(char *const *words, size_t count, char buf[CLI_NAME_LEN])
{
    if (count == 1)
        snprintf(buf, CLI_NAME_LEN, "%s", words[0]);
    else
        snprintf(buf, CLI_NAME_LEN, "%.*s and %zu more", CLI_NAME_LEN - 64, words[0],
                 count - 1);
    return buf;
}

void cli_raise_file_limit(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) < 0 || limit.rlim_cur >= limit.rlim_max)
        return;
    limit.rlim_cur = limit.rlim_max < 65536 ? limit.rlim_max : 65536;
    setrlimit(RLIMIT_NOFILE, &limit);
}

unsigned cli_default_jobs(void)
{
    unsigned n = cpus_allowed();
    return n > 64 ? 64 : n;
}

unsigned cli_progress_mode;
const char *const cli_progress_words[] = {"auto", "always", "never", NULL};

static int cli_take_word(const struct cli_command *command, const char *option,
                         const char *text, const char *const *words, unsigned *ret_place)
{
    char list[64] = "";
    for (unsigned i = 0; words[i]; i++) {
        size_t len = strlen(list);
        if (strcmp(text, words[i]) == 0) {
            *ret_place = i;
            return 0;
        }
        snprintf(list + len, sizeof(list) - len, "%s%s", i ? ", " : "", words[i]);
    }
    return cli_usage_error(command, "%s: '%s' is not one of %s", option, text, list);
}

/* ---- help ---- */

#define HELP_COLUMN 24
#define LINE_COLUMNS 84

/* The parts of an option's spelling. */
struct cli_spelling {
    char letter;      /* or 0 */
    const char *name; /* "output", of `name_len` bytes; NULL: there is only the letter */
    size_t name_len;
    int argument;      /* no_argument, required_argument or optional_argument */
    const char *value; /* what stands for the argument: "OUT", "LEVEL]"; "" without one */
};

static struct cli_spelling cli_spelling_of(const struct cli_option *o)
{
    const char *name = strstr(o->spelling, "--");
    const char *end = name ? name + strcspn(name, "[=") : o->spelling + 2;
    return (struct cli_spelling){
        .letter = o->spelling[1] == '-' ? '\0' : o->spelling[1],
        .name = name ? name + 2 : NULL,
        .name_len = name ? (size_t)(end - name - 2) : 0,
        .argument = *end == '[' ? optional_argument
                    : *end      ? required_argument
                                : no_argument,
        .value = end + strspn(end, "[= "),
    };
}

/* "  -j, --jobs=N          with N threads", in lines of a limited length. */
static void print_option(const struct cli_option *o)
{
    int column = printf("  %s%s", cli_spelling_of(o).letter ? "" : "    ", o->spelling);
    if (column > HELP_COLUMN - 2)
        column = LINE_COLUMNS;
    for (const char *word = o->help; *word; word += strspn(word, " ")) {
        int len = (int)strcspn(word, " ");
        if (column + 1 + len > LINE_COLUMNS) {
            putchar('\n');
            column = 0;
        }
        int gap = column < HELP_COLUMN ? HELP_COLUMN - column : 1;
        column += printf("%*s%.*s", gap, "", len, word);
        word += len;
    }
    putchar('\n');
}

static void print_usage(const struct cli_command *command, const struct cli_option *options)
{
    printf("Usage: onepot %s %s\n%s\n", command->name, command->synopsis, command->text);
    for (; options->spelling; options++)
        if (options->help)
            print_option(options);
    printf("\nThe manual page is onepot-%s(1).\n", command->name);
}

/* ---- the table ---- */

#define NAME_BYTES 32
#define ID_FIRST 0x2000 /* of the table's options, beyond letters */

/* The tables that getopt needs. */
struct getopt_tables {
    char letters[2 * LONGS_MAX];
    struct option longs[LONGS_MAX + 1];
    char names[LONGS_MAX][NAME_BYTES];
};

static int store_number(const struct cli_command *command, const struct cli_option *o,
                        const char *name)
{
    uint64_t number = 0;
    int r = cli_number_option(command, name, optarg, o->min, o->max, &number);
    if (r == 0 && o->number)
        *o->number = number;
    if (r == 0 && o->count)
        *o->count = (uint32_t)number;
    return r;
}

/* Store the command line's values: 0 or the exit status. */
static int cli_store(const struct cli_command *command, const struct cli_option *o)
{
    char name[NAME_BYTES];
    const char *from = strstr(o->spelling, "--");
    int r = 0;
    snprintf(name, sizeof(name), "%.*s", from ? (int)strcspn(from, "[=") : 0, from ? from : "");
    if (o->flag)
        *o->flag = true;
    if (o->text && optarg && !*optarg && strncmp(cli_spelling_of(o).value, "DIR", 3) == 0)
        return cli_usage_error(command, "%s= needs a directory", name);
    if (o->text)
        *o->text = optarg;
    if (o->size)
        r = cli_size_option(command, name, optarg, o->size);
    if (o->number || o->count)
        r = store_number(command, o, name);
    if (o->word)
        r = cli_take_word(command, name, optarg, o->words, o->word);
    return r == 0 && o->take ? o->take(command, o->ctx, optarg) : r;
}

void (*cli_see)(const struct cli_command *command, const struct cli_option *options,
                const struct cli_option *option, const char *value);

int cli_parse(const struct cli_command *command, const struct cli_option *own, int argc,
              char **argv)
{
    bool help = false, version = false;
    struct cli_option options[LONGS_MAX + 1];
    struct getopt_tables tables = {.letters = ":"};
    const struct cli_option *last = NULL; /* that has a value */
    const char *value = NULL;
    size_t count = 0, n = 0;
    int id, r = 0;
    const char *help_spelling = "-h, --help";
    for (; own[count].spelling; count++) {
        options[count] = own[count];
        if (cli_spelling_of(&own[count]).letter == 'h')
            help_spelling = "--help";
    }
    options[count++] = (struct cli_option){help_spelling, "print this help", .flag = &help};
    options[count++] = (struct cli_option){"--version", "print the version", .flag = &version};
    options[count] = (struct cli_option){NULL};
    for (size_t i = 0; i < count; i++) {
        struct cli_spelling spelling = cli_spelling_of(&options[i]);
        size_t len = strlen(tables.letters);
        if (spelling.letter)
            sprintf(tables.letters + len, "%c%s", spelling.letter,
                    spelling.argument ? ":" : "");
        if (!spelling.name)
            continue;
        snprintf(tables.names[n], NAME_BYTES, "%.*s", (int)spelling.name_len, spelling.name);
        tables.longs[n] =
            (struct option){tables.names[n], spelling.argument, NULL, ID_FIRST + (int)i};
        n++;
    }
    opterr = 0;
    while (r == 0 && (id = getopt_long(argc, argv, tables.letters, tables.longs, NULL)) != -1) {
        if (cli_see && !optarg) /* a flag, or an error */
            continue;
        if (id == '?' || id == ':')
            return bad_option(command, id, argv, tables.longs);
        const struct cli_option *o = options + (id >= ID_FIRST ? id - ID_FIRST : 0);
        while (id < ID_FIRST && cli_spelling_of(o).letter != id)
            o++;
        if (cli_see) {
            last = o;
            value = optarg;
            continue;
        }
        r = cli_store(command, o);
        if (help)
            print_usage(command, options);
        if (version)
            puts("onepot " ONEPOT_VERSION);
        if (help || version)
            return CLI_OK;
    }
    if (cli_see) {
        cli_see(command, options, last, value);
        return CLI_OK;
    }
    return r == 0 ? CLI_GO_ON : r;
}

/* ---- archives, and paths in them ---- */

int cli_take_path(const struct cli_command *command, void *ctx, const char *text)
{
    (void)command;
    struct cli_paths *words = ctx;
    words->paths[words->path_count++] = text;
    return 0;
}

int cli_count_behind_dashes(int argc, char **argv)
{
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], "--") == 0)
            return argc - i - 1;
    return -1;
}

int cli_parse_paths(const struct cli_command *command, const struct cli_option *options,
                    int argc, char **argv, struct cli_paths *words)
{
    int paths = cli_count_behind_dashes(argc, argv); /* getopt moves "--" */
    *words = (struct cli_paths){.guessed = paths < 0};
    words->paths = calloc((size_t)argc + 1, sizeof(*words->paths));
    words->found = calloc((size_t)argc + 1, sizeof(*words->found));
    if (!words->paths || !words->found)
        return cli_fail(NULL, -ENOMEM, NULL);
    int status = cli_parse(command, options, argc, argv);
    if (status != CLI_GO_ON)
        return status;
    if (paths < 0) { /* they begin at the first argument, after an archive, that is no file */
        struct stat st;
        int first = optind + 1;
        while (first < argc && stat(argv[first], &st) == 0 && !S_ISDIR(st.st_mode))
            first++;
        paths = first < argc ? argc - first : 0;
    }
    words->option_count = words->path_count;
    if (argc - optind <= paths)
        return cli_usage_error(command, "no archive was named");
    words->archives = argv + optind;
    words->archive_count = (size_t)(argc - optind - paths);
    for (int i = argc - paths; i < argc; i++)
        words->paths[words->path_count++] = argv[i];
    return CLI_GO_ON;
}

void cli_paths_free(struct cli_paths *words)
{
    free(words->paths);
    free(words->found);
}

int cli_paths_check(const struct cli_paths *words)
{
    size_t i = 0;
    while (i < words->path_count && words->found[i])
        i++;
    if (i == words->path_count)
        return CLI_OK;
    bool one = words->archive_count == 1;
    bool is_guess = words->guessed && i >= words->option_count;
    char name[CLI_NAME_LEN];
    return cli_failf(cli_name_of(words->archives, words->archive_count, name),
                     "%s: no such file or directory in the %s%s", words->paths[i],
                     one ? "archive" : "archives", is_guess ? ", and no archive here" : "");
}

/* ---- commands ---- */

#define COMMANDS_MOST 64

const struct cli_command *const *cli_commands;

void cli_print_commands(FILE *out)
{
    char formats[BACKEND_LIST_BYTES];
    backend_list(false, formats);
    fprintf(out,
            "Usage: onepot COMMAND [OPTION...] ARGUMENT...\n"
            "Show an archive (%s) as a directory, at native speed.\n"
            "\n"
            "Commands:\n",
            formats);
    for (const struct cli_command *const *c = cli_commands; *c; c++)
        if ((*c)->run)
            fprintf(out, "  %-11s %s\n", (*c)->name, (*c)->summary);
    fputs("\n"
          "'onepot COMMAND --help' and 'onepot help COMMAND' describe a command;\n"
          "'onepot version' prints the version, with --json also what this program can do.\n",
          out);
}

/* "onepot train.tar": the first words of a newcomer. */
static int advise_of_file(const char *word)
{
    struct stat st;
    if (stat(word, &st) == 0 && S_ISDIR(st.st_mode))
        cli_failf(NULL,
                  "'%s' is a directory, no command; 'onepot pack %s' makes an archive of it; "
                  "see 'onepot --help'",
                  word, word);
    else
        cli_failf(NULL,
                  "'%s' is no command; 'onepot mount %s' shows an archive as a directory, and "
                  "'onepot run %s -- COMMAND {}' to one command; see 'onepot --help'",
                  word, word, word);
    return CLI_USAGE;
}

static int unknown_command(const char *word)
{
    if (access(word, F_OK) == 0)
        return advise_of_file(word);
    const char *names[COMMANDS_MOST + 1] = {NULL};
    size_t n = 0;
    for (const struct cli_command *const *c = cli_commands; *c && n < COMMANDS_MOST; c++)
        if ((*c)->run)
            names[n++] = (*c)->name;
    const char *near = cli_nearest(word, names);
    if (!near && strpbrk(word, "./"))
        return advise_of_file(word);
    if (near)
        cli_failf(NULL, "there is no command '%s'; did you mean '%s'? See 'onepot --help'",
                  word, near);
    else
        cli_failf(NULL, "there is no command '%s'; see 'onepot --help'", word);
    return CLI_USAGE;
}

int cli_run_command(int argc, char **argv)
{
    const struct cli_command *const *c = cli_commands;
    while (*c && strcmp((*c)->name, argv[0]) != 0)
        c++;
    if (!*c)
        return unknown_command(argv[0]);
    if (!(*c)->run) {
        cli_failf(argv[0], "this onepot was built without it");
        /* For `run`, 1 would be an exit status of its command. */
        return strcmp(argv[0], "run") == 0 ? CLI_RUN_FAILED : CLI_FAILED;
    }
    return (*c)->run(argc, argv);
}
