/*
 * The options that say which part of an archive a command sees. What they gather belongs to the
 * process, as its arguments do.
 */
#include <stdbool.h>
#include <string.h>

#include "cli.h"
#include "tree_view.h"
#include "vector.h"

enum { VIEW_INCLUDE, VIEW_EXCLUDE, VIEW_FILES_FROM, VIEW_MAP, VIEW_FILES_FROM_NUL };

unsigned cli_view_words[5] = {VIEW_INCLUDE, VIEW_EXCLUDE, VIEW_FILES_FROM, VIEW_MAP,
                              VIEW_FILES_FROM_NUL};

static struct {
    VECTOR(struct view_pattern) patterns;
    struct view_options options;
    struct view *view;
    struct fileset_compose compose;
} chosen;

int cli_take_view(const struct cli_command *command, void *ctx, const char *text)
{
    unsigned word = *(unsigned *)ctx;
    if (!text || !*text)
        return cli_usage_error(command, "--include, --exclude, --files-from and --map need a "
                                        "pattern or a file");
    bool is_list = word == VIEW_FILES_FROM || word == VIEW_FILES_FROM_NUL;
    if ((is_list && chosen.options.files_from) || (word == VIEW_MAP && chosen.options.map))
        return cli_usage_error(command,
                               "--files-from and --map can be given once: join the files");
    if (is_list) {
        chosen.options.files_from = text;
        chosen.options.files_from_nul = word == VIEW_FILES_FROM_NUL;
    } else if (word == VIEW_MAP) {
        chosen.options.map = text;
    } else if (vector_push(&chosen.patterns,
                           (struct view_pattern){text, word == VIEW_INCLUDE}) < 0) {
        return cli_failf(NULL, "out of memory");
    }
    if (chosen.options.files_from && chosen.options.map)
        return cli_usage_error(command,
                               "--files-from and --map exclude each other: a map shows "
                               "the names it has, and no others");
    return 0;
}

int cli_take_nested(const struct cli_command *command, void *ctx, const char *text)
{
    (void)ctx;
    if (text && !*text)
        return cli_usage_error(command, "--nested= needs a pattern");
    chosen.compose.nested = true;
    chosen.compose.nested_glob = text;
    return 0;
}

bool cli_picks_of_archives(void)
{
    bool picks = chosen.compose.nested || chosen.options.map;
    for (size_t i = 0; i < chosen.patterns.count; i++)
        picks |= chosen.patterns.at[i].includes;
    return picks;
}

int cli_compose(const struct fileset_compose **ret_compose)
{
    struct view_options *o = &chosen.options;
    struct fault fault = {0};
    const char *file;
    *ret_compose = NULL;
    o->patterns = chosen.patterns.at;
    o->pattern_count = chosen.patterns.count;
    bool has_view = o->pattern_count || o->files_from || o->map;
    if (!has_view && !chosen.compose.nested)
        return 0;
    if (has_view && !chosen.view) {
        int r = view_read(o, &fault, &file, &chosen.view);
        if (r < 0) {
            cli_fail(file && strcmp(file, "-") == 0 ? "standard input" : file, r, &fault);
            return r;
        }
        chosen.compose.view = chosen.view;
    }
    *ret_compose = &chosen.compose;
    return 0;
}
