/*
 * A line of mountinfo, see proc(5):
 *
 *   36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue
 *   id parent dev root path options optional... - type source super-options
 *
 * Spaces, tabs, newlines and backslashes in paths are octal escapes.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cleanup.h"
#include "mountinfo.h"

struct line {
    unsigned dev_major, dev_minor;
    char *root, *path; /* escaped */
    char *type, *super_options;
};

/* The next field of the line that strtok_r is splitting. */
static char *field(char **save)
{
    return strtok_r(NULL, " \n", save);
}

static bool parse(char *text, struct line *ret)
{
    char *save, *word = strtok_r(text, " \n", &save);
    char *parent = word ? field(&save) : NULL, *dev = parent ? field(&save) : NULL;

    ret->root = dev ? field(&save) : NULL;
    ret->path = ret->root ? field(&save) : NULL;
    if (!ret->path || sscanf(dev, "%u:%u", &ret->dev_major, &ret->dev_minor) != 2)
        return false;
    while ((word = field(&save)) && strcmp(word, "-") != 0)
        ;
    ret->type = word ? field(&save) : NULL;
    char *source = ret->type ? field(&save) : NULL;
    ret->super_options = source ? field(&save) : NULL;
    return ret->type != NULL;
}

/* False if the path does not fit; then it can't be one that a caller looks for. */
static bool unescape(const char *text, char ret_path[PATH_MAX])
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

/* Call visit for each line until it returns true. */
static int each_line(const char *file, bool (*visit)(void *ctx, const struct line *line),
                     void *ctx)
{
    auto_free char *text = NULL;
    size_t size = 0;
    bool found = false;
    FILE *f = fopen(file, "re");

    if (!f)
        return -errno;
    while (!found && getline(&text, &size, f) > 0) {
        struct line line;
        if (parse(text, &line))
            found = visit(ctx, &line);
    }
    fclose(f);
    return found ? 0 : -ENOENT;
}

struct search {
    const char *path;
    struct mount_entry *entry;
    bool found;
    unsigned dev_major, dev_minor;
};

/* Later mounts cover earlier ones, so all lines are checked. */
static bool match_path(void *ctx, const struct line *line)
{
    struct search *search = ctx;
    struct mount_entry *e = search->entry;
    char path[PATH_MAX];

    if (!unescape(line->path, path) || strcmp(path, search->path) != 0)
        return false;
    search->found = true;
    e->dev_major = line->dev_major;
    e->dev_minor = line->dev_minor;
    strcpy(e->path, path);
    e->is_onepot = strcmp(line->type, "fuse.onepot") == 0;
    const char *user = line->super_options ? strstr(line->super_options, "user_id=") : NULL;
    e->uid = user ? (unsigned)strtoul(user + strlen("user_id="), NULL, 10) : 0;
    return false;
}

int mountinfo_find(const char *path, struct mount_entry *ret_entry)
{
    struct search search = {.path = path, .entry = ret_entry};
    int r = each_line("/proc/self/mountinfo", match_path, &search);
    return r < 0 && r != -ENOENT ? r : search.found ? 0 : -ENOENT;
}

static bool match_device(void *ctx, const struct line *line)
{
    struct search *search = ctx;
    char path[PATH_MAX];
    return line->dev_major == search->dev_major && line->dev_minor == search->dev_minor &&
           unescape(line->path, path) && strcmp(path, search->path) == 0;
}

bool mountinfo_has(const char *path, unsigned dev_major, unsigned dev_minor)
{
    struct search search = {.path = path, .dev_major = dev_major, .dev_minor = dev_minor};
    return each_line("/proc/self/mountinfo", match_device, &search) == 0;
}

struct device_search {
    unsigned dev_major, dev_minor;
    char *path;
};

static bool match_any_path(void *ctx, const struct line *line)
{
    struct device_search *search = ctx;
    return line->dev_major == search->dev_major && line->dev_minor == search->dev_minor &&
           unescape(line->path, search->path);
}

int mountinfo_device_in(const char *file, unsigned dev_major, unsigned dev_minor,
                        char ret_path[PATH_MAX])
{
    struct device_search search = {dev_major, dev_minor, ret_path};
    return each_line(file, match_any_path, &search);
}

int mountinfo_find_device(unsigned dev_major, unsigned dev_minor, char ret_path[PATH_MAX])
{
    return mountinfo_device_in("/proc/self/mountinfo", dev_major, dev_minor, ret_path);
}

struct cgroup_search {
    const char *controller;
    char *path, *root;
};

static bool has_option(const char *options, const char *word)
{
    size_t n = strlen(word);
    for (const char *p = options; p; p = strchr(p, ',')) {
        p += *p == ',';
        if (strncmp(p, word, n) == 0 && (p[n] == ',' || p[n] == '\0'))
            return true;
    }
    return false;
}

static bool match_cgroup(void *ctx, const struct line *line)
{
    struct cgroup_search *search = ctx;
    if (search->controller ? strcmp(line->type, "cgroup") != 0 || !line->super_options ||
                                 !has_option(line->super_options, search->controller)
                           : strcmp(line->type, "cgroup2") != 0)
        return false;
    return unescape(line->path, search->path) && unescape(line->root, search->root);
}

int mountinfo_cgroup(const char *file, const char *controller, char ret_path[PATH_MAX],
                     char ret_root[PATH_MAX])
{
    struct cgroup_search search = {controller, ret_path, ret_root};
    return each_line(file, match_cgroup, &search);
}
