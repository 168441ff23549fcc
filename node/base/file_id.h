/*
 * Is it the same file? Device and inode identify a file as long as it exists.
 */
#ifndef ONEPOT_FILE_ID_H
#define ONEPOT_FILE_ID_H

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>

struct file_id {
    uint64_t dev, ino;
};

static inline struct file_id file_id_of(const struct stat *st)
{
    return (struct file_id){st->st_dev, st->st_ino};
}

static inline bool file_id_equal(struct file_id a, struct file_id b)
{
    return a.ino == b.ino && a.dev == b.dev;
}

/*
 * Does `name` in `folder_fd` (a link is not followed) still lead to the open file `fd`?
 * 1 and, unless it is NULL, *ret_st of that file; 0: it leads elsewhere or nowhere; -errno.
 */
static inline int file_is_named(int folder_fd, const char *name, int fd, struct stat *ret_st)
{
    struct stat named, mine;
    if (fstat(fd, &mine) < 0)
        return -errno;
    if (fstatat(folder_fd, name, &named, AT_SYMLINK_NOFOLLOW) < 0)
        return errno == ENOENT ? 0 : -errno;
    if (!file_id_equal(file_id_of(&named), file_id_of(&mine)))
        return 0;
    if (ret_st)
        *ret_st = mine;
    return 1;
}

#endif
