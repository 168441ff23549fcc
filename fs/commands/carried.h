/*
 * Texts that the program carries, so that it is complete without any other file. The build
 * makes them (carry.py).
 */
#ifndef ONEPOT_CARRIED_H
#define ONEPOT_CARRIED_H

struct carried {
    const char *name;
    const char *text;
};

/*
 * The manual pages of man/ as text: "mount" for onepot-mount.1, "onepot" for onepot.1. They
 * have no text if the build had no mandoc. The last one has no name.
 */
extern const struct carried carried_pages[];

/*
 * The linked libraries, each with its licence, beginning with onepot itself. A library that
 * lies outside of the program has no text, for it comes with its own. The last one has no name.
 */
extern const struct carried carried_licences[];

/* The scripts that complete command lines: "bash", "zsh", "fish". The last one has no name. */
extern const struct carried carried_completions[];

/* The source of onepot-mpi. */
extern const char carried_mpi[];

#endif
