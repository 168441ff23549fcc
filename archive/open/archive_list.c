#include "archive_list.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cleanup.h"
#include "output.h"
#include "path.h"
#include "fileset_private.h"
#include "text.h"
#include "vector.h"
#include "volumes.h"

#define LIST_BYTES_MAX (64u << 20)

enum word_kind { WORD_PATH, WORD_FOLDER, WORD_PATTERN, WORD_LIST };

static enum word_kind word_kind(const char *word)
{
    struct stat st;
    if (stat(word, &st) == 0)
        return S_ISDIR(st.st_mode) ? WORD_FOLDER : WORD_PATH;
    if (word[0] == '@' && word[1])
        return WORD_LIST;
    return strpbrk(word, "*?[") ? WORD_PATTERN : WORD_PATH;
}

bool archive_list_is_set(const char *word)
{
    return word_kind(word) != WORD_PATH;
}

void archive_list_free(struct archive_list *list)
{
    while (list->count > 0)
        free(list->at[--list->count]);
    vector_free(list);
    list->is_set = false;
}

/* Takes over the path; NULL: it could not be allocated. */
static int list_put(struct archive_list *list, char *path)
{
    if (!path || vector_push(list, path) < 0) {
        free(path);
        return -ENOMEM;
    }
    return 0;
}

/* ---- folders ---- */

/* A saved index or an unfinished archive is no archive. */
static bool is_by_product(const char *name)
{
    size_t len = strlen(name), n = strlen(INDEX_SUFFIX), own;
    return partial_name_parse(name, &own) ||
           (len >= n && strcmp(name + len - n, INDEX_SUFFIX) == 0);
}

static int is_shard(const struct dirent *entry)
{
    return entry->d_name[0] != '.' && !is_by_product(entry->d_name);
}

static int by_name(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

/* Is it there and no regular file? A link counts as its target. */
static bool is_no_file(const struct dirent *entry, const char *path)
{
    struct stat st;
    return entry->d_type != DT_REG && stat(path, &st) == 0 && !S_ISREG(st.st_mode);
}

/* Add an entry of a folder if it is a file. */
static int list_entry(struct archive_list *list, const char *folder, const struct dirent *entry)
{
    auto_free char *path = NULL;
    size_t len = strlen(folder);
    if (asprintf(&path, "%s%s%s", folder, folder[len - 1] == '/' ? "" : "/", entry->d_name) <
        0) {
        path = NULL;
        return -ENOMEM;
    }
    return is_no_file(entry, path) ? 0 : list_put(list, steal_ptr(&path));
}

static int list_folder(struct archive_list *list, const char *path, struct fault *fault)
{
    struct dirent **entries;
    size_t before = list->count;
    int n = scandir(path, &entries, is_shard, by_name);
    if (n < 0)
        return fault_set_errno(fault, -errno, NULL, "can't be listed");
    int r = 0;
    for (int i = 0; i < n; i++) {
        if (r == 0)
            r = list_entry(list, path, entries[i]);
        free(entries[i]);
    }
    free(entries);
    if (r == 0 && list->count == before)
        return fault_set_advised(
            fault, -ENOENT, NULL, FAULT_NO_OFFSET,
            "'onepot pack' makes one of its files; the directory of a mount is named by --at",
            "there is no archive in this directory");
    return r;
}

/* ---- patterns ---- */

static int list_pattern(struct archive_list *list, const char *pattern, struct fault *fault)
{
    glob_t found = {0};
    size_t before = list->count;
    int r = glob(pattern, 0, NULL, &found);
    if (r == GLOB_NOMATCH)
        r = fault_set(fault, -ENOENT, NULL, FAULT_NO_OFFSET, "no file matches");
    else if (r != 0)
        r = fault_set(fault, r == GLOB_NOSPACE ? -ENOMEM : -EIO, NULL, FAULT_NO_OFFSET,
                      "can't be looked for");
    for (size_t i = 0; r == 0 && i < found.gl_pathc; i++) {
        if (is_by_product(path_base(found.gl_pathv[i])))
            continue;
        r = list_put(list, strdup(found.gl_pathv[i]));
    }
    globfree(&found);
    if (r == 0 && list->count == before)
        r = fault_set(fault, -ENOENT, NULL, FAULT_NO_OFFSET, "no archive matches");
    return r;
}

/* ---- lists ---- */

static int list_lines(struct archive_list *list, const struct text *text)
{
    char end = text->count && memchr(text->at, '\0', text->count) ? '\0' : '\n';
    for (size_t at = 0, len; at < text->count; at += len + 1) {
        const char *next = memchr(text->at + at, end, text->count - at);
        len = next ? (size_t)(next - text->at) - at : text->count - at;
        int r = len ? list_put(list, strndup(text->at + at, len)) : 0;
        if (r < 0)
            return r;
    }
    return 0;
}

static int list_file(struct archive_list *list, const char *path, struct fault *fault)
{
    struct text text = {0};
    size_t before = list->count;
    bool is_stdin = strcmp(path, "-") == 0;
    auto_close int opened = is_stdin ? -1 : open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY);
    if (opened < 0 && !is_stdin)
        return fault_set_errno(fault, -errno, NULL, "the list can't be opened");
    int r = text_read(is_stdin ? STDIN_FILENO : opened, LIST_BYTES_MAX, &text);
    if (r == 0)
        r = list_lines(list, &text);
    vector_free(&text);
    if (r == -EFBIG)
        fault_set(fault, r, NULL, FAULT_NO_OFFSET,
                  "is no list: it has more than %u MiB; a list has a path a line",
                  LIST_BYTES_MAX >> 20);
    else if (r < 0)
        fault_set_errno(fault, r, NULL, "the list can't be read");
    else if (list->count == before)
        r = fault_set(fault, -ENOENT, NULL, FAULT_NO_OFFSET, "the list names no archive");
    return r;
}

/* ---- volumes ---- */

/* Keep the first of several parts of one archive. */
static void list_drop_parts(struct archive_list *list, size_t keep, const volume_paths *parts)
{
    size_t kept = keep + 1;
    for (size_t i = keep + 1; i < list->count; i++) {
        bool is_part = false;
        for (size_t k = 0; !is_part && k < parts->count; k++)
            is_part = strcmp(list->at[i], parts->at[k]) == 0;
        if (is_part)
            free(list->at[i]);
        else
            list->at[kept++] = list->at[i];
    }
    list->count = kept;
}

/* Of shards in a row one is looked at. A single archive is not: opening it finds its parts. */
int archive_list_join(struct archive_list *list)
{
    const char *alone = NULL;
    int r = 0;
    list->is_whole = list->count > 1 || list->is_plain;
    for (size_t i = 0; !list->is_plain && r >= 0 && list->count > 1 && i < list->count; i++) {
        volume_paths parts;
        if (series_is_shard(alone, list->at[i]))
            continue;
        r = volumes_find(list->at[i], &parts);
        alone = parts.count ? NULL : list->at[i];
        list->is_whole &= r > 0;
        if (parts.count)
            list_drop_parts(list, i, &parts);
        volumes_free(&parts);
    }
    return r < 0 ? r : 0;
}

bool archive_list_is_whole(const struct archive_list *list, size_t i)
{
    return list->is_whole || series_is_shard(i > 0 ? list->at[i - 1] : NULL, list->at[i]);
}

int archive_list_add(struct archive_list *list, const char *word, struct fault *fault)
{
    struct fault own = {0};
    enum word_kind kind = list->is_plain ? WORD_PATH : word_kind(word);
    size_t before = list->count;
    int r = 0;
    list->is_set |= kind != WORD_PATH;
    switch (kind) {
    case WORD_PATH:
        r = list_put(list, strdup(word));
        break;
    case WORD_LIST:
        r = list_file(list, word + 1, &own);
        break;
    case WORD_FOLDER:
        r = list_folder(list, word, &own);
        break;
    case WORD_PATTERN:
        r = list_pattern(list, word, &own);
        break;
    }
    if (r < 0) {
        while (list->count > before)
            free(list->at[--list->count]);
        if (fault && !fault->err)
            *fault = own;
    }
    return r;
}
