/*
 * The parser of maps. Names only become shorter by it, so they stay where they were read.
 */
#include "view_map.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>

#include "path.h"

static int map_refuse(struct fault *fault, uint64_t number, const char *why, const char *advice)
{
    return fault_set_advised(fault, -EINVAL, NULL, FAULT_NO_OFFSET, advice, "line %llu %s",
                             (unsigned long long)number, why);
}

/* Replace escapes; NULL: there is one that has no meaning. Else the new end. */
static char *map_unescape(char *name, const char *end)
{
    char *to = name;
    for (const char *from = name; from < end; from++) {
        char c = *from;
        if (c == '\\') {
            c = ++from == end ? '\0' : *from;
            c = c == 't' ? '\t' : c == 'n' ? '\n' : c == '\\' ? '\\' : '\0';
            if (!c)
                return NULL;
        }
        *to++ = c;
    }
    return to;
}

/* Drop what means nothing in a path; false: it has "..", or nothing is left. */
static bool map_normalise(char *name, const char *end)
{
    const char *path = name, *part;
    size_t len = (size_t)(end - name), part_len;
    char *to = name;
    while (path_next_name(&path, &len, &part, &part_len)) {
        if (path_are_dots(part, part_len))
            return false;
        if (to != name)
            *to++ = '/';
        memmove(to, part, part_len);
        to += part_len;
    }
    *to = '\0';
    return to != name;
}

static int map_name(struct fault *fault, uint64_t number, char *name, char *end)
{
    if (memchr(name, '\0', (size_t)(end - name)))
        return map_refuse(fault, number, "has a zero byte", "no name can have one");
    end = map_unescape(name, end);
    if (!end)
        return map_refuse(fault, number, "has a backslash without a meaning",
                          "write \\\\ for a backslash, \\t for a tab, \\n for a newline");
    if (!map_normalise(name, end))
        return map_refuse(fault, number, "has an empty name, or '..' in a name",
                          "name members by their path from the root");
    return 0;
}

/* One line; `end` is its newline. */
static int map_line(struct view_map *map, char *line, char *end, uint64_t number,
                    struct fault *fault)
{
    char *tab = memchr(line, '\t', (size_t)(end - line));
    if (!tab)
        return map_refuse(fault, number, "has no tab",
                          "write the name in the archive, a tab, and the name to show");
    if (memchr(tab + 1, '\t', (size_t)(end - tab - 1)))
        return map_refuse(fault, number, "has two tabs", "write \\t for a tab in a name");
    int r = map_name(fault, number, line, tab);
    if (r == 0)
        r = map_name(fault, number, tab + 1, end);
    if (r < 0)
        return r;
    struct view_map_line names = {(size_t)(line - map->text.at),
                                  (size_t)(tab + 1 - map->text.at), number};
    return vector_push(&map->lines, names);
}

int view_map_parse(struct view_map *map, struct fault *fault)
{
    char *at = map->text.at, *end = at + map->text.count;
    uint64_t number = 0;
    int r = 0;
    while (r == 0 && at < end) {
        char *newline = memchr(at, '\n', (size_t)(end - at));
        if (!newline)
            return -EINVAL;
        number++;
        if (newline > at)
            r = map_line(map, at, newline, number, fault);
        at = newline + 1;
    }
    return r;
}

void view_map_free(struct view_map *map)
{
    vector_free(&map->text);
    vector_free(&map->lines);
}
