/*
 * Files that appear whole or not at all.
 *
 * All calls are relative to a descriptor of the folder, so that a folder moved meanwhile takes
 * its partial file along. The final step does not replace a file created since the start,
 * unless `overwrite` allows it.
 */
#include "output.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cleanup.h"

void output_release(struct output *output)
{
    if (output->fd >= 0)
        close(output->fd);
    if (output->folder_fd >= 0)
        close(output->folder_fd);
    free(output->name);
    free(output->partial_name);
    free(output);
}

static int already_exists(struct fault *fault)
{
    fault_set(fault, -EEXIST, NULL, FAULT_NO_OFFSET, "already exists");
    fault_advise(fault, "choose another name with -o, or replace it with -f");
    return -EEXIST;
}

static int failed(struct fault *fault, int err, const char *what)
{
    char text[128];
    return fault_set(fault, err, NULL, FAULT_NO_OFFSET, "%s: %s", what,
                     strerror_r(-err, text, sizeof(text)));
}

/* The target of a symbolic link, else the path itself. Caller frees. */
static int follow(const char *path, struct fault *fault, char **ret_path)
{
    struct stat st;
    bool link = lstat(path, &st) == 0 && S_ISLNK(st.st_mode);
    char *followed = link ? realpath(path, NULL) : strdup(path);
    if (!followed)
        return failed(fault, -errno, "can't be followed to a file");
    *ret_path = followed;
    return 0;
}

static int open_folder(struct output *output, const char *path, struct fault *fault)
{
    const char *slash = strrchr(path, '/');
    auto_free char *folder =
        slash ? strndup(path, slash == path ? 1 : (size_t)(slash - path)) : strdup(".");
    output->name = strdup(slash ? slash + 1 : path);
    if (!folder || !output->name)
        return -ENOMEM;
    size_t len = strlen(output->name);
    if (len == 0 || strcmp(output->name, ".") == 0 || strcmp(output->name, "..") == 0)
        return fault_set(fault, -EISDIR, NULL, FAULT_NO_OFFSET, "is no name for a file");
    if (len > NAME_MAX)
        return fault_set(fault, -ENAMETOOLONG, NULL, FAULT_NO_OFFSET, "name is too long");
    output->folder_fd = open(folder, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (output->folder_fd < 0)
        return failed(fault, -errno, "its folder can't be opened");
    return 0;
}

static int check_existing(struct output *output, struct fault *fault)
{
    struct stat st;
    if (fstatat(output->folder_fd, output->name, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return errno == ENOENT ? 0 : failed(fault, -errno, "can't be examined");
    if (S_ISDIR(st.st_mode)) {
        fault_set(fault, -EISDIR, NULL, FAULT_NO_OFFSET, "is a directory");
        fault_advise(fault, "name a file with -o");
        return -EISDIR;
    }
    if (!S_ISREG(st.st_mode))
        return fault_set(fault, -EEXIST, NULL, FAULT_NO_OFFSET, "is no regular file");
    if (!output->overwrite)
        return already_exists(fault);
    output->replaced_ino = st.st_ino;
    return 0;
}

/* NAME.XXXXXX.partial, with NAME truncated if the whole would be too long. */
static int make_partial_name(struct output *output)
{
    uint64_t noise;
    char unique[PARTIAL_LETTER_COUNT + 1];
    if (getrandom(&noise, sizeof(noise), 0) != sizeof(noise))
        return -EIO;
    partial_letters(noise, unique);
    int most = NAME_MAX - (int)PARTIAL_EXTRA_LEN;
    free(output->partial_name);
    output->partial_name = NULL;
    if (asprintf(&output->partial_name, "%.*s.%s" PARTIAL_SUFFIX, most, output->name, unique) <
        0) {
        output->partial_name = NULL;
        return -ENOMEM;
    }
    return 0;
}

static int create_partial(struct output *output, struct fault *fault)
{
    for (int attempt = 0; attempt < 100; attempt++) {
        int r = make_partial_name(output);
        if (r < 0)
            return r;
        output->fd = openat(output->folder_fd, output->partial_name,
                            O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, output->mode);
        if (output->fd < 0 && errno != EEXIST)
            break;
        if (output->fd >= 0 && leftovers_claim(output->fd) == 0)
            break;
        if (output->fd >=
            0) { /* a process that took it for a leftover may not have removed it */
            unlinkat(output->folder_fd, output->partial_name, 0);
            close(steal_fd(&output->fd));
        }
        errno = EEXIST;
    }
    struct stat st;
    if (output->fd < 0 || fstat(output->fd, &st) < 0)
        return failed(fault, -errno, "can't be created");
    output->dev = st.st_dev;
    output->ino = st.st_ino;
    return 0;
}

static bool is_of_output(const void *ctx, const char *name, size_t len)
{
    const struct output *output = ctx;
    size_t own = strlen(output->name), most = NAME_MAX - PARTIAL_EXTRA_LEN;
    return len == (own < most ? own : most) && memcmp(name, output->name, len) == 0;
}

void output_clean(const char *path, const struct leftovers *how)
{
    struct output output = {.fd = -1, .folder_fd = -1};
    auto_free char *followed = NULL;
    if (follow(path, NULL, &followed) == 0 && open_folder(&output, followed, NULL) == 0) {
        struct leftovers l = *how;
        if (!l.match) {
            l.match = is_of_output;
            l.match_ctx = &output;
        }
        leftovers_remove(output.folder_fd, &l);
    }
    if (output.folder_fd >= 0)
        close(output.folder_fd);
    free(output.name);
}

int output_open(const char *path, bool overwrite, struct fault *fault,
                struct output **ret_output)
{
    struct output *output = calloc(1, sizeof(*output));
    if (!output)
        return -ENOMEM;
    *output = (struct output){.fd = -1, .folder_fd = -1, .overwrite = overwrite, .mode = 0666};

    auto_free char *followed = NULL;
    int r = follow(path, fault, &followed);
    if (r == 0)
        r = open_folder(output, followed, fault);
    if (r == 0)
        r = check_existing(output, fault);
    if (r == 0)
        r = create_partial(output, fault);
    if (r < 0) {
        output_release(output);
        return r;
    }
    *ret_output = output;
    return 0;
}

int output_open_own(const char *path, struct output **ret_output)
{
    struct output *output = calloc(1, sizeof(*output));
    if (!output)
        return -ENOMEM;
    *output = (struct output){.fd = -1, .folder_fd = -1, .overwrite = true, .mode = 0600};
    int r = open_folder(output, path, NULL);
    if (r == 0) {
        leftovers_remove(output->folder_fd,
                         &(struct leftovers){.match = is_of_output, .match_ctx = output});
        r = create_partial(output, NULL);
    }
    if (r < 0)
        output_release(output);
    else
        *ret_output = output;
    return r;
}

/* Rename, but not over a file. Filesystems without such a rename get a hard link. */
static int rename_to_new(const struct output *output)
{
    int dir = output->folder_fd;
    if (renameat2(dir, output->partial_name, dir, output->name, RENAME_NOREPLACE) == 0)
        return 0;
    if (errno != EINVAL && errno != ENOSYS)
        return -errno;
    if (linkat(dir, output->partial_name, dir, output->name, 0) == 0) {
        unlinkat(dir, output->partial_name, 0);
        return 0;
    }
    if (errno == EEXIST)
        return -EEXIST;
    /* Neither is supported here. What remains is to check, then rename. */
    if (faccessat(dir, output->name, F_OK, AT_SYMLINK_NOFOLLOW) == 0)
        return -EEXIST;
    return renameat(dir, output->partial_name, dir, output->name) < 0 ? -errno : 0;
}

static int rename_final(const struct output *output)
{
    int dir = output->folder_fd;
    if (!output->overwrite)
        return rename_to_new(output);
    return renameat(dir, output->partial_name, dir, output->name) < 0 ? -errno : 0;
}

/* A folder that can be written but not read can't be synced: its owner accepted that. */
void output_sync_folder(int folder_fd)
{
    auto_close int fd = openat(folder_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd >= 0)
        fsync(fd);
}

static int sync_file(const struct output *output, struct fault *fault)
{
    return fsync(output->fd) < 0 ? failed(fault, -errno, "can't be brought to the disk") : 0;
}

int output_ready(struct output *output, const char *letters, bool sync, struct fault *fault)
{
    auto_free char *ready = NULL;
    int r = sync ? sync_file(output, fault) : 0, dir = output->folder_fd;
    if (r < 0)
        return r;
    if (asprintf(&ready, "%s.%s" READY_SUFFIX, output->name, letters) < 0) {
        ready = NULL;
        return -ENOMEM;
    }
    if (renameat(dir, output->partial_name, dir, ready) < 0)
        return failed(fault, -errno, "can't be given the name under which it waits");
    free(output->partial_name);
    output->partial_name = steal_ptr(&ready);
    return 0;
}

int output_commit(struct output *output, bool sync, struct fault *fault)
{
    int r = sync ? sync_file(output, fault) : 0;
    if (r < 0) {
        output_discard(output);
        return r;
    }
    r = rename_final(output);
    if (r < 0) {
        if (r == -EEXIST)
            already_exists(fault);
        else
            failed(fault, r, "can't be given its name");
        output_discard(output);
        return r;
    }
    if (sync)
        output_sync_folder(output->folder_fd);
    output_release(output);
    return 0;
}

void output_discard(struct output *output)
{
    if (!output)
        return;
    unlinkat(output->folder_fd, output->partial_name, 0);
    output_release(output);
}
