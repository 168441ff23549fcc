/*
 * A line of mountinfo, see proc(5):
 *
 *   36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue
 *   id parent dev root path options optional... - type source super-options
 *
 * Spaces, tabs, newlines and backslashes in paths are octal escapes.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cleanup.h"
#include "mountinfo.h"
#include "path.h"
#include "process.h"

#define LINKS_MAX 40 /* as many symbolic links as Linux follows */

struct mount_line {
    int id;
    unsigned dev_major, dev_minor;
    char *root, *path; /* escaped */
    char *type, *source, *super_options;
};

/* The next field of a line, or NULL. A source may be empty. */
static char *mount_line_field(char **rest)
{
    return strsep(rest, " \n");
}

static bool mount_line_parse(char *text, struct mount_line *ret)
{
    char *word = mount_line_field(&text), *parent = mount_line_field(&text),
         *dev = mount_line_field(&text);

    ret->id = word ? atoi(word) : 0;
    ret->root = mount_line_field(&text);
    ret->path = mount_line_field(&text);
    if (!parent || !ret->path || sscanf(dev, "%u:%u", &ret->dev_major, &ret->dev_minor) != 2)
        return false;
    while ((word = mount_line_field(&text)) && strcmp(word, "-") != 0)
        ;
    ret->type = mount_line_field(&text);
    ret->source = mount_line_field(&text);
    ret->super_options = mount_line_field(&text);
    return ret->type != NULL;
}

/* False if the path does not fit; then it can't be one that a caller looks for. */
static bool mount_unescape(const char *text, char ret_path[PATH_MAX])
{
    size_t n = 0;
    while (*text && n < PATH_MAX - 1) {
        if (text[0] == '\\' && text[1] >= '0' && text[1] <= '3' && text[2] && text[3]) {
            ret_path[n++] =
                (char)((text[1] - '0') << 6 | (text[2] - '0') << 3 | (text[3] - '0'));
            text += 4;
        } else {
            ret_path[n++] = *text++;
        }
    }
    ret_path[n] = '\0';
    return !*text;
}

/* The next line of the file, in `text` until the next call; false at the end. */
static bool mount_line_next(FILE *file, char **text, size_t *size, struct mount_line *line)
{
    while (getline(text, size, file) > 0)
        if (mount_line_parse(*text, line))
            return true;
    return false;
}

static void mount_entry_take(const struct mount_line *line, struct mount_entry *ret_entry)
{
    const char *user = line->super_options ? strstr(line->super_options, "user_id=") : NULL;
    ret_entry->dev_major = line->dev_major;
    ret_entry->dev_minor = line->dev_minor;
    ret_entry->is_onepot = strcmp(line->type, "fuse.onepot") == 0;
    snprintf(ret_entry->type, sizeof(ret_entry->type), "%s", line->type);
    snprintf(ret_entry->source, sizeof(ret_entry->source), "%s",
             line->source ? line->source : "");
    ret_entry->uid = user ? (unsigned)strtoul(user + strlen("user_id="), NULL, 10)
                     : strncmp(line->type, "fuse", 4) == 0 ? UINT_MAX
                                                           : 0;
}

/* The mount at this path, or, where that is NULL, of this number: later mounts cover earlier
 * ones. */
static int mountinfo_look(const char *path, int id, struct mount_entry *ret_entry)
{
    auto_free char *text = NULL;
    size_t size = 0;
    struct mount_line line;
    char at[PATH_MAX];
    auto_fclose FILE *list = fopen("/proc/self/mountinfo", "re");
    if (!list)
        return path || errno == EMFILE || errno == ENFILE ? -errno : -ENOTSUP;
    int r = -ENOENT;
    while ((path || r < 0) && mount_line_next(list, &text, &size, &line)) {
        if ((!path && line.id != id) || !mount_unescape(line.path, at) ||
            (path && strcmp(at, path) != 0))
            continue;
        mount_entry_take(&line, ret_entry);
        strcpy(ret_entry->path, at);
        r = 0;
    }
    return r;
}

int mountinfo_find(const char *path, struct mount_entry *ret_entry)
{
    return mountinfo_look(path, -1, ret_entry);
}

/* The number of a mount by statx(2). -1: it does not tell, before Linux 5.8. */
static int statx_id(int fd, const char *path)
{
    enum { MASK = 0x1000, AT = 0x90 }; /* STATX_MNT_ID; of stx_mnt_id in struct statx */
    struct statx st = {0};
    uint64_t id;
    if (statx(fd, path, AT_EMPTY_PATH | AT_STATX_DONT_SYNC, MASK, &st) < 0 ||
        !(st.stx_mask & MASK))
        return -1;
    memcpy(&id, (const char *)&st + AT, sizeof(id));
    return (int)id;
}

/* The number of a mount by /proc, for which no filesystem is called. -1: it does not tell. */
static int fdinfo_id(int fd)
{
    static const char word[] = "\nmnt_id:";
    char path[64], text[512];
    snprintf(path, sizeof(path), "/proc/self/fdinfo/%d", fd);
    const char *at = proc_text(path, text, sizeof(text)) == 0 ? strstr(text, word) : NULL;
    return at ? atoi(at + strlen(word)) : -1;
}

int mountinfo_of(int fd, int other_fd, struct mount_entry *ret_entry)
{
    static _Atomic int tells = -1; /* does statx? */
    if (tells < 0) /* a kernel that tells it of /proc (5.8) asks no FUSE program (since 4.20) */
        tells = statx_id(AT_FDCWD, "/proc") >= 0;
    bool is_quick = other_fd >= 0 && tells;
    int id = is_quick ? statx_id(fd, "") : -1, other = is_quick ? statx_id(other_fd, "") : -1;
    if (id < 0 && (id = fdinfo_id(fd)) < 0)
        return -ENOTSUP;
    if (other_fd >= 0 && other < 0)
        other = fdinfo_id(other_fd);
    if (id == other)
        return 1;
    int r = mountinfo_look(NULL, id, ret_entry);
    /* Before Linux 5.8 a line is passed over if an earlier mount ends between two reads. */
    return r == -ENOENT ? mountinfo_look(NULL, id, ret_entry) : r;
}

/* The first place of the device that is, or is not, this path; NULL: any. */
static int mountinfo_device(const char *file, unsigned dev_major, unsigned dev_minor,
                            const char *path, bool is_path, char ret_path[PATH_MAX])
{
    auto_free char *text = NULL;
    size_t size = 0;
    struct mount_line line;
    bool found = false;
    auto_fclose FILE *list = fopen(file, "re");
    if (!list)
        return -errno;
    while (!found && mount_line_next(list, &text, &size, &line))
        found = line.dev_major == dev_major && line.dev_minor == dev_minor &&
                mount_unescape(line.path, ret_path) &&
                (!path || (strcmp(ret_path, path) == 0) == is_path);
    return found ? 0 : -ENOENT;
}

bool mountinfo_has(const char *path, unsigned dev_major, unsigned dev_minor)
{
    char at[PATH_MAX];
    return mountinfo_device("/proc/self/mountinfo", dev_major, dev_minor, path, true, at) == 0;
}

int mountinfo_device_in(const char *file, unsigned dev_major, unsigned dev_minor,
                        const char *except, char ret_path[PATH_MAX])
{
    return mountinfo_device(file, dev_major, dev_minor, except, false, ret_path);
}

size_t mountinfo_fuse_in(const char *file, unsigned uid, struct mount_entry *ret_entries,
                         size_t most)
{
    auto_free char *text = NULL;
    size_t size = 0;
    struct mount_line line;
    size_t count = 0;
    auto_fclose FILE *list = fopen(file, "re");
    if (!list)
        return 0;
    while (mount_line_next(list, &text, &size, &line)) {
        struct mount_entry *entry = &ret_entries[count % most];
        mount_entry_take(&line, entry);
        if ((entry->is_onepot || strcmp(line.type, "fuse") == 0) && entry->uid == uid &&
            mount_unescape(line.path, entry->path))
            count++;
    }
    return count < most ? count : most;
}

static bool mount_has_option(const char *options, const char *word)
{
    size_t n = strlen(word);
    for (const char *p = options; p; p = strchr(p, ',')) {
        p += *p == ',';
        if (strncmp(p, word, n) == 0 && (p[n] == ',' || p[n] == '\0'))
            return true;
    }
    return false;
}

static bool mount_is_cgroup(const struct mount_line *line, const char *controller)
{
    return strcmp(line->type, controller ? "cgroup" : "cgroup2") == 0 &&
           (!controller || mount_has_option(line->super_options, controller));
}

void mountinfo_cgroups(const char *file, const char *const *controllers, size_t count,
                       char (*ret_paths)[PATH_MAX], char (*ret_roots)[PATH_MAX])
{
    auto_free char *text = NULL;
    size_t size = 0;
    struct mount_line line;
    for (size_t i = 0; i < count; i++)
        ret_paths[i][0] = '\0';
    auto_fclose FILE *list = fopen(file, "re");
    if (!list)
        return;
    while (mount_line_next(list, &text, &size, &line))
        for (size_t i = 0; i < count; i++)
            if (!ret_paths[i][0] && mount_is_cgroup(&line, controllers[i]) &&
                (!mount_unescape(line.path, ret_paths[i]) ||
                 !mount_unescape(line.root, ret_roots[i])))
                ret_paths[i][0] = '\0';
}

/* ---- paths ---- */

/* Split `path` into the folder and the last component; false if that is "." or "..". */
static bool split_path(const char *path, char folder[PATH_MAX], char base[PATH_MAX])
{
    size_t len = strlen(path);

    while (len > 1 && path[len - 1] == '/')
        len--;
    size_t start = len;
    while (start > 0 && path[start - 1] != '/')
        start--;
    snprintf(base, PATH_MAX, "%.*s", (int)(len - start), path + start);
    snprintf(folder, PATH_MAX, "%.*s", (int)start, path);
    if (start == 0)
        strcpy(folder, ".");
    return base[0] && !path_is_dots(base);
}

/*
 * Follow one symbolic link at `path`, which lies in `folder`. 0: there was none. -EPERM: it is
 * another user's in a folder like /tmp. The kernel has the same rule (fs.protected_symlinks),
 * but it could only be asked by following the link all the way to a mount that may hang.
 */
static int follow_last_link(const char *folder, char path[PATH_MAX])
{
    char target[PATH_MAX];
    struct stat st, above;
    auto_close int folder_fd = open(folder, O_PATH | O_DIRECTORY | O_CLOEXEC);
    auto_close int fd =
        folder_fd < 0 ? -1
                      : openat(folder_fd, path_base(path), O_PATH | O_NOFOLLOW | O_CLOEXEC);

    if (fd < 0)
        return errno == ENOENT ? 0 : -errno;
    ssize_t n = readlinkat(fd, "", target, sizeof(target) - 1);
    if (n < 0)
        return errno == EINVAL || errno == ENOENT ? 0 : -errno;
    if (fstat(fd, &st) < 0 || fstat(folder_fd, &above) < 0)
        return -errno;
    if (st.st_uid != geteuid() && st.st_uid != above.st_uid &&
        (above.st_mode & (S_ISVTX | S_IWOTH)) == (S_ISVTX | S_IWOTH))
        return -EPERM;
    target[n] = '\0';
    int need = target[0] == '/' ? snprintf(path, PATH_MAX, "%s", target)
                                : snprintf(path, PATH_MAX, "%s/%s", folder, target);
    return need < PATH_MAX ? 1 : -ENAMETOOLONG;
}

int mountinfo_resolve(const char *path, char ret_path[PATH_MAX])
{
    char at[PATH_MAX], folder[PATH_MAX], base[PATH_MAX], real[PATH_MAX];
    struct mount_entry entry;

    if (!*path)
        return -ENOENT;
    if (snprintf(at, sizeof(at), "%s", path) >= PATH_MAX)
        return -ENAMETOOLONG;
    for (int links = 0; links < LINKS_MAX; links++) {
        if (!split_path(at, folder, base))
            return realpath(at, ret_path) ? 0 : -errno;
        /* glibc looks at a path with a slash at its end by faccessat2, which filters refuse. */
        for (size_t len = strlen(folder); len > 1 && folder[len - 1] == '/';)
            folder[--len] = '\0';
        if (!realpath(folder, real))
            return -errno;
        if (snprintf(at, sizeof(at), "%s/%s", strcmp(real, "/") ? real : "", base) >= PATH_MAX)
            return -ENAMETOOLONG;
        int r = mountinfo_find(at, &entry) == 0 ? 0 : follow_last_link(real, at);
        if (r < 0)
            return r;
        if (r == 0) {
            strcpy(ret_path, at);
            return 0;
        }
    }
    return -ELOOP;
}
