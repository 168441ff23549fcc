/*
 * Scope-bound cleanup, as in systemd and util-linux. A variable declared with the macro is
 * destroyed when its scope ends; steal_* hands the value on. A function uses either these
 * macros or one `goto` label, not both.
 */
#ifndef ONEPOT_CLEANUP_H
#define ONEPOT_CLEANUP_H

#include <dirent.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static inline void cleanup_freep(void *p)
{
    free(*(void **)p);
}

static inline void cleanup_closep(const int *fd)
{
    if (*fd >= 0)
        close(*fd);
}

static inline void cleanup_fclosep(FILE **file)
{
    if (*file)
        fclose(*file);
}

static inline void cleanup_closedirp(DIR **dir)
{
    if (*dir)
        closedir(*dir);
}

#define auto_free __attribute__((cleanup(cleanup_freep)))
#define auto_close __attribute__((cleanup(cleanup_closep)))
#define auto_fclose __attribute__((cleanup(cleanup_fclosep)))
#define auto_closedir __attribute__((cleanup(cleanup_closedirp)))

static inline int steal_fd(int *fd)
{
    int v = *fd;
    *fd = -1;
    return v;
}

static inline void *steal_voidp(void *p)
{
    void *v = *(void **)p;
    *(void **)p = NULL;
    return v;
}
#define steal_ptr(p) ((__typeof__(*(p)))steal_voidp(p))

#endif
