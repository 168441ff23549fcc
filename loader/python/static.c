/*
 * For an extension with its libraries inside (-Dprefer_static=true). Distributions compile
 * static libraries for programs, where the address of a standard stream is known to the linker.
 * In a shared object this holds only if the object defines one, as here; the value is the C
 * library's. Only libbz2 uses them, for the last words before it aborts.
 */
#include <dlfcn.h>
#include <stddef.h>

#define NAME_OF(stream) "std" #stream
#define OWN_STREAM(stream)                                                                     \
    extern void *own_##stream __asm__(NAME_OF(stream));                                        \
    __attribute__((visibility("hidden"))) void *own_##stream

OWN_STREAM(in);
OWN_STREAM(out);
OWN_STREAM(err);

static void *value_of(const char *name)
{
    void **there = dlsym(RTLD_DEFAULT, name);
    return there ? *there : NULL;
}

__attribute__((constructor)) static void static_take_streams(void)
{
    own_in = value_of(NAME_OF(in));
    own_out = value_of(NAME_OF(out));
    own_err = value_of(NAME_OF(err));
}
