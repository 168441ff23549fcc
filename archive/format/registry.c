/*
 * The registry of formats. ONEPOT_FORMATS comes from archive/meson.build, which lists them:
 * FORMAT(squashfs) FORMAT(onepot) and so on, in the order in which they are asked.
 *
 * Nothing else is in this file, so a test program can be linked with a registry that has more
 * formats: it compiles this file once more.
 */
#include <stddef.h>

#include "backend.h"

#define FORMAT(name) extern const struct backend backend_##name;
ONEPOT_FORMATS
#undef FORMAT

#define FORMAT(name) &backend_##name,
const struct backend *const backend_registry[] = {ONEPOT_FORMATS NULL};
