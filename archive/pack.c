/*
 * Packing as a whole: the sources are opened, the pipeline fills the archive, the
 * archive gets its name.
 */
#include "pack.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cleanup.h"
#include "folder.h"
#include "pipeline.h"

struct source_folder {
    char *name; /* in the archive; "" for a source alone */
    int fd;
    const char *path;
};

static int source_fault(struct fault *fault, int err, const char *path)
{
    char text[128];
    if (err == -ENOTDIR) {
        fault_set(fault, err, path, FAULT_NO_OFFSET, "is not a directory");
        fault_advise(fault, "name the directory that is to be packed");
    } else {
        fault_set(fault, err, path, FAULT_NO_OFFSET, "can't be packed: %s",
                  strerror_r(-err, text, sizeof(text)));
    }
    return err;
}

/* The last component of a path; "." and the like are resolved first. Caller frees. */
static int base_name(const char *path, char **ret_name)
{
    size_t len = strlen(path);
    while (len && path[len - 1] == '/')
        len--;
    size_t start = len;
    while (start && path[start - 1] != '/')
        start--;
    const char *base = path + start;
    size_t base_len = len - start;
    bool dots = (base_len == 1 && base[0] == '.') ||
                (base_len == 2 && base[0] == '.' && base[1] == '.');
    if (base_len && !dots) {
        *ret_name = strndup(base, base_len);
        return *ret_name ? 0 : -ENOMEM;
    }
    auto_free char *resolved = realpath(path, NULL);
    if (!resolved)
        return -errno;
    const char *slash = strrchr(resolved, '/');
    if (!slash || !slash[1])
        return -EINVAL;
    *ret_name = strdup(slash + 1);
    return *ret_name ? 0 : -ENOMEM;
}

int pack_default_output(const char *source, char **ret_name)
{
    auto_free char *base = NULL;
    int r = base_name(source, &base);
    if (r < 0)
        return r;
    return asprintf(ret_name, "%s.onepot.tar", base) < 0 ? -ENOMEM : 0;
}

static int open_source(struct source_folder *s, const char *path, bool alone,
                       struct fault *fault)
{
    s->path = path;
    s->fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (s->fd < 0)
        return source_fault(fault, -errno, path);
    if (alone) {
        s->name = strdup("");
        return s->name ? 0 : -ENOMEM;
    }
    int r = base_name(path, &s->name);
    if (r == -EINVAL) {
        fault_set(fault, r, path, FAULT_NO_OFFSET, "has no name for its folder in the archive");
        fault_advise(fault, "pack it alone");
    }
    return r;
}

static int compare_sources(const void *a, const void *b)
{
    const struct source_folder *x = a, *y = b;
    return strcmp(x->name, y->name);
}

static int open_sources(const struct pack_options *o, struct source_folder *sources,
                        struct fault *fault)
{
    for (size_t i = 0; i < o->source_count; i++) {
        int r = open_source(&sources[i], o->sources[i], o->source_count == 1, fault);
        if (r < 0)
            return r;
    }
    qsort(sources, o->source_count, sizeof(*sources), compare_sources);
    for (size_t i = 1; i < o->source_count; i++) {
        if (strcmp(sources[i - 1].name, sources[i].name) != 0)
            continue;
        fault_set(fault, -EEXIST, sources[i].path, FAULT_NO_OFFSET,
                  "another source has the same name, '%s'", sources[i].name);
        fault_advise(fault, "pack the directory that holds both");
        return -EEXIST;
    }
    return 0;
}

/* The folder whose names are the sources, and their descriptors in the same order. */
static int make_root(struct folder_set *set, struct source_folder *sources, size_t count,
                     int *fds, struct folder **ret_root)
{
    struct listing listing = {.names = calloc(count, sizeof(struct folder_name))};
    size_t text_len = 0, at = 0;
    for (size_t i = 0; i < count; i++)
        text_len += strlen(sources[i].name) + 1;
    listing.text = malloc(text_len);
    if (!listing.names || !listing.text) {
        listing_free(&listing);
        return -ENOMEM;
    }
    listing.count = count;
    for (size_t i = 0; i < count; i++) {
        size_t len = strlen(sources[i].name) + 1;
        memcpy(listing.text + at, sources[i].name, len);
        listing.names[i] = (struct folder_name){listing.text + at, DT_DIR};
        at += len;
        fds[i] = sources[i].fd;
        sources[i].fd = -1;
    }
    return folder_new(set, NULL, "", 0, -1, 0, 0, &listing, ret_root);
}

/* How many descriptors folders and threads may take of those that the process has. */
static unsigned descriptors(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) < 0 || limit.rlim_cur > 2048)
        return 2048;
    return limit.rlim_cur < 64 ? 32 : (unsigned)limit.rlim_cur - 32;
}

/* Each has a folder and a file open. */
static unsigned max_threads(void)
{
    unsigned most = descriptors() / 4;
    return most < PACK_THREADS_MAX ? most : PACK_THREADS_MAX;
}

static int fill(const struct pack_options *options, struct writer *writer,
                struct source_folder *sources, struct pack_result *result, struct fault *fault)
{
    struct folder_set set = {.most = descriptors() / 4};
    struct folder *root;
    auto_free int *fds = calloc(options->source_count, sizeof(*fds));
    int r = fds ? make_root(&set, sources, options->source_count, fds, &root) : -ENOMEM;
    if (r < 0)
        return r;
    r = pipeline_run(options, writer, &set, root, fds, max_threads(), result, fault);
    for (size_t i = 0; i < options->source_count; i++)
        if (fds[i] >= 0)
            close(fds[i]);
    folder_unref(&set, root);
    return r;
}

static int write_archive(const struct pack_options *options, struct source_folder *sources,
                         struct fault *fault, struct pack_result *result)
{
    struct writer *writer;
    struct writer_options how = {.overwrite = options->overwrite, .no_sync = options->no_sync};
    int r = writer_open(options->output, &how, fault, &writer);
    if (r < 0)
        return r;
    r = fill(options, writer, sources, result, fault);
    if (r == 0 && options->stop && atomic_load(options->stop))
        r = -EINTR;
    if (r < 0) {
        writer_discard(writer);
        return r;
    }
    return writer_close(writer, fault, &result->totals);
}

int pack_run(const struct pack_options *options, struct fault *fault,
             struct pack_result *ret_result)
{
    struct pack_result result = {0};
    if (options->source_count == 0)
        return -EINVAL;
    struct source_folder *sources = calloc(options->source_count, sizeof(*sources));
    if (!sources)
        return -ENOMEM;
    for (size_t i = 0; i < options->source_count; i++)
        sources[i].fd = -1;
    int r = open_sources(options, sources, fault);
    if (r == 0)
        r = write_archive(options, sources, fault, &result);
    for (size_t i = 0; i < options->source_count; i++) {
        if (sources[i].fd >= 0)
            close(sources[i].fd);
        free(sources[i].name);
    }
    free(sources);
    if (r == 0)
        *ret_result = result;
    return r;
}
