/*
 * The program that an exec would start: can it load the library? ld.so prints a line for each
 * entry of LD_PRELOAD that it can't load, so the entry is left out for programs of another kind
 * of CPU (32-bit ones, say). It is also left out for programs with the address sanitizer in a
 * shared library: they don't start unless that one comes first. A file that can't be read is
 * taken for one of these.
 *
 * System calls only, with 2.5 KB of stack: it runs in signal handlers and after vfork, too.
 */
#ifndef ONEPOT_IMAGE_H
#define ONEPOT_IMAGE_H

#include <stdbool.h>

/*
 * `path` relative to `dir`, or if it is searched, a name that is looked for in $PATH, unless it
 * has a slash. A script counts as its interpreter. A program without an
 * interpreter (a static one) takes it: it loads nothing, and its children may. `is_filtered`: a
 * filter of system calls may be there, so make only calls that each program's start makes.
 */
bool image_takes_library(int dir, const char *path, bool is_searched, bool is_filtered);

#endif
