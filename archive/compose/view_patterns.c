/*
 * Views: patterns.
 *
 * A pattern with a slash can match only below the directories that its beginning names, up to
 * the first character that is not literal. So a walk leaves out other directories whole: of ten
 * million files, `--include 'train/n01*'` looks at the ones in train/n01* alone.
 */
#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#include "selection.h"
#include "tree_view_private.h"

/* The patterns' verdict on this path alone. */
static enum view_verdict view_match(const struct view *view, const char *path, bool is_folder)
{
    for (size_t i = 0; i < view->pattern_count; i++)
        if (selection_matches(view->patterns[i].glob, path, is_folder))
            return view->patterns[i].includes ? VIEW_SHOWN : VIEW_HIDDEN;
    return VIEW_NOTHING;
}

/*
 * The verdict on the first `len` bytes of the filter's folder, which end at a slash or the end.
 */
static enum view_verdict view_folder_verdict(struct view_filter *f, size_t len)
{
    enum view_verdict verdict = VIEW_NOTHING;
    char *text = f->folder.at;
    for (size_t end = 0; end < len && verdict != VIEW_HIDDEN; end++) {
        end += strcspn(text + end, "/");
        char kept = text[end];
        text[end] = '\0';
        enum view_verdict own = view_match(f->view, text, true);
        text[end] = kept;
        if (own != VIEW_NOTHING)
            verdict = own;
    }
    return verdict;
}

/* The verdict on a path, which all below it inherits. -ENOMEM. */
static int view_filter_verdict(struct view_filter *f, const char *path, size_t len,
                               bool is_folder)
{
    const char *slash = memrchr(path, '/', len);
    size_t folder_len = slash ? (size_t)(slash - path) : 0;
    bool is_known =
        f->folder.count == folder_len + 1 && memcmp(f->folder.at, path, folder_len) == 0;
    if (!is_known) {
        f->folder.count = 0;
        if (vector_append(&f->folder, path, folder_len) < 0 ||
            vector_push(&f->folder, '\0') < 0)
            return -ENOMEM;
        f->folder_verdict = view_folder_verdict(f, folder_len);
    }
    if (f->folder_verdict == VIEW_HIDDEN)
        return VIEW_HIDDEN;
    enum view_verdict own = view_match(f->view, path, is_folder);
    return own == VIEW_NOTHING ? f->folder_verdict : own;
}

int view_filter_shows_named(struct view_filter *f, const char *path, size_t len, bool is_folder)
{
    int verdict = view_filter_verdict(f, path, len, is_folder);
    if (verdict < 0)
        return verdict;
    return verdict == VIEW_SHOWN ||
           (verdict == VIEW_NOTHING && (is_folder || f->view->shows_rest));
}

/* Can the pattern match something below this directory? */
static bool view_reaches(const char *glob, const char *folder, size_t len)
{
    glob += *glob == '/';
    const char *slash = strchr(glob, '/');
    if (!slash || !slash[1])
        return true;
    size_t literal = strcspn(glob, "*?[\\");
    if (literal <= len)
        return memcmp(glob, folder, literal) == 0;
    return memcmp(glob, folder, len) == 0 && glob[len] == '/';
}

int view_choose(struct view_filter *f, const char *path, size_t len, uint32_t mode)
{
    const struct view *view = f->view;
    int verdict = view_filter_verdict(f, path, len, S_ISDIR(mode));
    if (verdict < 0)
        return verdict;
    if (verdict == VIEW_SHOWN || (verdict == VIEW_NOTHING && view->shows_rest))
        return VIEW_TAKE;
    if (verdict == VIEW_HIDDEN || !S_ISDIR(mode))
        return VIEW_LEAVE_OUT;
    for (size_t i = 0; i < view->pattern_count; i++)
        if (view->patterns[i].includes && view_reaches(view->patterns[i].glob, path, len))
            return VIEW_IF_NEEDED;
    return VIEW_LEAVE_OUT;
}

int view_bytes_begin(struct view_bytes *bytes)
{
    bytes->bytes = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    if (!bytes->bytes)
        return -ENOMEM;
    bytes->before = uselocale(bytes->bytes);
    return 0;
}

void view_bytes_end(struct view_bytes *bytes)
{
    uselocale(bytes->before);
    freelocale(bytes->bytes);
}
