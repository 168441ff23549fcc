#include "image.h"

#include <elf.h>
#include <stdlib.h>
#include <string.h>

#include "io_private.h"

#define SCRIPTS_MAX 5 /* interpreters that are scripts: the kernel takes no more */
#define HEAD_BYTES 512
#define PATH_BYTES 1024
#define DYNAMIC_AT_ONCE 8

#if defined(__aarch64__)
#define MACHINE EM_AARCH64
#else
#define MACHINE EM_X86_64
#endif

static bool read_all(int fd, void *buf, size_t len, uint64_t offset)
{
    return io_call(SYS_pread64, fd, buf, len, (off_t)offset) == (long)len;
}

/* ---- the first library that a program needs ---- */

/* Where in the file these bytes of memory come from; false: nowhere. */
static bool file_offset(int fd, const Elf64_Ehdr *head, uint64_t address, uint64_t *ret_offset)
{
    Elf64_Phdr part;

    for (unsigned i = 0; i < head->e_phnum; i++) {
        if (!read_all(fd, &part, sizeof(part), head->e_phoff + i * sizeof(part)))
            return false;
        if (part.p_type == PT_LOAD && address - part.p_vaddr < part.p_filesz) {
            *ret_offset = address - part.p_vaddr + part.p_offset;
            return true;
        }
    }
    return false;
}

static bool find_dynamic(int fd, const Elf64_Ehdr *head, Elf64_Phdr *ret_part)
{
    for (unsigned i = 0; i < head->e_phnum; i++)
        if (!read_all(fd, ret_part, sizeof(*ret_part), head->e_phoff + i * sizeof(*ret_part)))
            return false;
        else if (ret_part->p_type == PT_DYNAMIC)
            return true;
    return false;
}

/* The first DT_NEEDED and the address of the strings. */
static bool read_dynamic(int fd, const Elf64_Phdr *part, uint64_t *ret_needed,
                         uint64_t *ret_strings)
{
    Elf64_Dyn entries[DYNAMIC_AT_ONCE];
    bool has_needed = false;

    for (uint64_t at = 0; at + sizeof(entries[0]) <= part->p_filesz; at += sizeof(entries)) {
        long n =
            io_call(SYS_pread64, fd, entries, sizeof(entries), (off_t)(part->p_offset + at));
        for (long i = 0; i < n / (long)sizeof(entries[0]); i++) {
            if (entries[i].d_tag == DT_NULL)
                return false;
            if (entries[i].d_tag == DT_NEEDED && !has_needed) {
                *ret_needed = entries[i].d_un.d_val;
                has_needed = true;
            }
            *ret_strings = entries[i].d_un.d_ptr;
            if (entries[i].d_tag == DT_STRTAB)
                return has_needed;
        }
        if (n <= 0)
            break;
    }
    return false;
}

static bool needs_sanitizer_first(int fd, const Elf64_Ehdr *head)
{
    static const char *const names[] = {"libasan.so", "libclang_rt.asan"};
    char name[24] = "";
    uint64_t needed, strings, offset;
    Elf64_Phdr dynamic;

    if (head->e_phentsize != sizeof(Elf64_Phdr) || !find_dynamic(fd, head, &dynamic) ||
        !read_dynamic(fd, &dynamic, &needed, &strings) ||
        !file_offset(fd, head, strings + needed, &offset))
        return false;
    io_call(SYS_pread64, fd, name, sizeof(name) - 1, (off_t)offset);
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (strncmp(name, names[i], strlen(names[i])) == 0)
            return true;
    return false;
}

/* ---- files ---- */

/* The interpreter that "#!" names; false: none. */
static bool find_interpreter(char *head, const char **ret_path)
{
    char *path = head + 2 + strspn(head + 2, " \t");
    path[strcspn(path, " \t\n")] = '\0';
    *ret_path = path;
    return *path;
}

#define IS_SCRIPT 2 /* its interpreter counts */

/* 1, 0, IS_SCRIPT; -1: it can't be read. */
static int fd_takes_library(int fd, char head[HEAD_BYTES], bool is_filtered)
{
    Elf64_Ehdr elf;
    long n = io_call(SYS_read, fd, head, (size_t)HEAD_BYTES - 1);

    if (n < 0)
        return -1;
    head[n] = '\0';
    if (strncmp(head, "#!", 2) == 0)
        return IS_SCRIPT;
    memcpy(&elf, head, sizeof(elf));
    if (n < (long)sizeof(elf) || memcmp(elf.e_ident, ELFMAG, SELFMAG) != 0)
        return 1; /* a shell reads it, or something that the system was told of */
    return elf.e_ident[EI_CLASS] == ELFCLASS64 && elf.e_machine == MACHINE &&
           (is_filtered || !needs_sanitizer_first(fd, &elf));
}

/* 1, 0; -1: the file can't be read. */
static int image_takes(int dir, const char *path, bool is_filtered)
{
    char head[HEAD_BYTES];
    const long flags = O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK;
    int takes = IS_SCRIPT;

    for (unsigned i = 0; i < SCRIPTS_MAX && takes == IS_SCRIPT; i++) {
        int fd = (int)io_call(SYS_openat, dir, path, flags);
        takes = fd < 0 ? -1 : fd_takes_library(fd, head, is_filtered);
        if (fd >= 0)
            io_call(SYS_close, fd);
        if (takes == IS_SCRIPT && !find_interpreter(head, &path))
            return 1; /* it is a shell's, says execvp */
        dir = AT_FDCWD;
    }
    return takes == IS_SCRIPT ? -1 : takes;
}

/* The first one of this name in $PATH that can be read. */
static int image_found_takes(const char *name, bool is_filtered)
{
    char path[PATH_BYTES];
    const char *folder = getenv("PATH");
    size_t name_len = strlen(name);
    int takes = -1;

    folder = folder ? folder : "/bin:/usr/bin";
    while (takes < 0) {
        size_t len = strcspn(folder, ":");
        if (len + name_len + 3 <= sizeof(path)) {
            char *to = mempcpy(path, len ? folder : ".", len ? len : 1);
            *to++ = '/';
            memcpy(to, name, name_len + 1);
            takes = image_takes(AT_FDCWD, path, is_filtered);
        }
        if (!folder[len])
            break;
        folder += len + 1;
    }
    return takes;
}

bool image_takes_library(int dir, const char *path, bool is_searched, bool is_filtered)
{
    bool is_name = is_searched && !strchr(path, '/');
    return (is_name ? image_found_takes(path, is_filtered)
                    : image_takes(dir, path, is_filtered)) == 1;
}
