/*
 * Judges whether a path can be trusted: whether another user could replace its target.
 *
 * A folder lets its owner rename and remove everything in it, and so does a mode that lets
 * others write, unless it is sticky. So every folder above, and the place itself, belongs to
 * this user or to root and is writable to nobody else. The walk goes by descriptor, and the
 * caller gets the descriptor that was judged: a path that is opened again is a new question.
 *
 *     r = place_open(path, PLACE_SHARED, &place);
 *     if (r < 0)
 *         cli_failf(NULL, "%s", place_explain(&place, text, sizeof(text)));
 *     mkdirat(place.fd, "onepot-1000", 0700);
 *     close(place.fd);
 *
 * Groups. Root and the owner's private group are nobody else: its number is the owner's,
 * neither /etc/passwd nor /etc/group gives it to another user, and no access control list adds
 * one.
 *
 * User namespaces. A user without a number there, host root included, shows as the overflow
 * number (65534). Such a user is never taken for us. It is taken for root only where the path
 * itself is root's on every system: "/", the folders directly in it, /usr with all below, and a
 * few like /dev/shm.
 *
 * FUSE. A program that another user mounted can name any owner; nothing in it is trusted.
 *
 * Threads: any.
 */
#ifndef ONEPOT_PLACE_H
#define ONEPOT_PLACE_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/stat.h>

enum place_rule {
    PLACE_SHARED, /* sticky folders may be writable to all, as /tmp is: for entries of our own
                   */
    PLACE_CLOSED, /* no folder is writable to anybody else: for names that need not exist */
};

/* A place that was judged, or the first folder on the way that is not trusted. */
struct place {
    char path[PATH_MAX]; /* real: absolute, without links; see place_open */
    struct stat st;
    int fd;  /* O_PATH */
    int err; /* 0, or positive; EXDEV: another user's FUSE program is mounted there */
};

/*
 * Judge an absolute path; it may lead to a folder or a file. Links in it are resolved first,
 * and only where they lead is judged. The caller closes ret_place->fd. -EPERM: it is not
 * trusted, and *ret_place is what is not, with its state. Other errors: it can't be opened, and
 * *ret_place has the path that was asked for.
 */
int place_open(const char *path, enum place_rule rule, struct place *ret_place);

/*
 * Open an entry of an open folder, without following a link. -EXDEV: another user's FUSE
 * program is mounted on it, whatever owner that names; nothing is asked of that program, which
 * may never answer. The entry is not judged further. *ret_fd is O_PATH.
 */
int place_open_entry(int folder_fd, const char *name, int *ret_fd);

/* Does every user have a number in our user namespace? */
bool place_knows_all_users(void);

/*
 * Our user's number outside of our user namespace. There the roots of all users' containers
 * differ, while in it each is 0.
 */
unsigned place_uid(void);

/* Does a file or folder belong to us, and not to users without a number here? */
bool place_is_ours(const struct stat *st);

/* One line: the folder, its owner and mode, and the reason. Returns buf. */
const char *place_explain(const struct place *refused, char *buf, size_t size);

#endif
