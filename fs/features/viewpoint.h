/*
 * Where processes of ours see the mount, to read through it (mount_fetcher.h). A mount that the
 * daemon made itself is at its mount point. One that a parent has made (a container runtime),
 * or that is private to the command of a `run`, lies in other namespaces; processes of the same
 * user that live there show the way. Which of the places that they have is this mount is proved
 * by asking there for a name that only this daemon knows.
 */
#ifndef ONEPOT_VIEWPOINT_H
#define ONEPOT_VIEWPOINT_H

#include <limits.h>
#include <stddef.h>
#include <sys/types.h>

struct viewpoint {
    pid_t pid; /* a process that sees it; 0: this one does */
    char path[PATH_MAX];
};

/* Places that may be it, at most `most`; returns their number. */
size_t viewpoint_list(struct viewpoint *ret_views, size_t most);

/*
 * In a separate process, without locks or allocations: a descriptor of the directory there, or
 * -1. The process gets a namespace in which that is a private copy, so that others may unmount
 * theirs meanwhile. Where it may not have one, it sees a foreign place as that process does,
 * and keeps it busy.
 */
int viewpoint_enter(const struct viewpoint *view);

#endif
