/*
 * Faults: the record of an error, and the one line of text made from it.
 *
 * A child that parsed a hostile archive may have written the fault, into memory that it can
 * still write to. So nothing here relies on a terminating NUL, and all text from an archive is
 * made safe for a terminal: an escape sequence in a member's name must not reach one.
 */
#include "fault.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "utf8.h"
#include "syscalls.h"

static void fault_record(struct fault *f, int err, const char *member, uint64_t offset,
                         const char *advice, const char *format, va_list args)
{
    if (!f || f->err)
        return;

    f->offset = offset;
    snprintf(f->advice, sizeof(f->advice), "%s", advice);
    size_t len = member ? strnlen(member, sizeof(f->member) - 1) : 0;
    if (len)
        memcpy(f->member, member, len);
    f->member[len] = '\0';

    vsnprintf(f->what, sizeof(f->what), format, args);
    f->err = err < 0 ? -err : err;
}

int fault_set(struct fault *f, int err, const char *member, uint64_t offset, const char *format,
              ...)
{
    va_list args;
    va_start(args, format);
    fault_record(f, err, member, offset, "", format, args);
    va_end(args);
    return err;
}

int fault_set_advised(struct fault *f, int err, const char *member, uint64_t offset,
                      const char *advice, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fault_record(f, err, member, offset, advice, format, args);
    va_end(args);
    return err;
}

int fault_set_errno(struct fault *f, int err, const char *member, const char *what)
{
    return fault_set(f, err, member, FAULT_NO_OFFSET, "%s: %s", what, fault_errno(err));
}

int fault_set_read(struct fault *f, int err, const char *member, uint64_t offset)
{
    return fault_set(f, err, member, offset, "read error: %s", fault_errno(err));
}

void fault_advise(struct fault *f, const char *format, ...)
{
    if (!f || !f->err)
        return;

    va_list args;
    va_start(args, format);
    vsnprintf(f->advice, sizeof(f->advice), format, args);
    va_end(args);
}

/* Output that keeps counting when the buffer is full, as snprintf does. */
struct out {
    char *buf;
    size_t size;
    size_t len;
};

static void fault_put(struct out *o, const char *bytes, size_t count)
{
    for (size_t i = 0; i < count; i++, o->len++)
        if (o->len + 1 < o->size)
            o->buf[o->len] = bytes[i];
}

static void put_string(struct out *o, const char *s)
{
    fault_put(o, s, strlen(s));
}

/* Put a text that may come from an archive between two of ours. */
static void put_text(struct out *o, const char *before, const char *text, size_t size,
                     const char *behind)
{
    size_t len = strnlen(text, size);
    put_string(o, before);
    for (size_t i = 0; i < len;) {
        size_t n = utf8_printable_length(text + i, len - i);
        if (n) {
            fault_put(o, text + i, n);
            i += n;
        } else {
            char hex[5];
            snprintf(hex, sizeof(hex), "\\x%02x", (unsigned char)text[i++]);
            put_string(o, hex);
        }
    }
    put_string(o, behind);
}

void fault_set_file(struct fault *f, const char *file)
{
    if (f && f->err && !f->file[0])
        snprintf(f->file, sizeof(f->file), "%s", file);
}

const char *fault_limit(int err)
{
    if (err == -EMFILE || err == EMFILE)
        return "; raise the limit of open files ('ulimit -n')";
    if (err == -EAGAIN || err == EAGAIN) /* from fork(2) and thread creation only */
        return "; the limit of processes is reached ('ulimit -u', which counts the threads of "
               "all "
               "processes of the user, or pids.max of the cgroup)";
    if (err == -EFBIG || err == EFBIG)
        return "; a limit on the size of files ('ulimit -f') or on memory is reached";
    if (err == -ENOSYS || err == ENOSYS) { /* by syscalls.h and thread.h: which one is it? */
        int fd = syscall_memfd("onepot", MFD_CLOEXEC);
        if (fd == -ENOSYS)
            return "; memfd_create is refused, as by a filter of system calls (seccomp)";
        close(fd);
        if (syscall(SYS_clone3, NULL, 0) < 0 && errno == EPERM)
            return "; clone3 is refused, as by a filter of system calls (seccomp)";
    }
    return "";
}

const char *fault_errno(int err)
{
    static _Thread_local char text[64];
    if (err == EREMCHG || err == -EREMCHG) /* source_folder.h; no system call has this error */
        return "a file of it was changed or removed meanwhile";
    return strerror_r(err < 0 ? -err : err, text, sizeof(text));
}

static void put_error(struct out *o, int err)
{
    put_string(o, fault_errno(err));
    put_string(o, fault_limit(err));
}

int fault_describe(const struct fault *f, int err, const char *file, char *buf,
                   unsigned long size)
{
    const struct fault none = {.offset = FAULT_NO_OFFSET};
    struct out o = {.buf = buf, .size = size};
    if (!f || !f->err)
        f = &none;
    if (f->file[0])
        put_text(&o, "", f->file, sizeof(f->file), ": ");
    else if (file)
        put_text(&o, "", file, SIZE_MAX, ": ");
    if (f->member[0])
        put_text(&o, "", f->member, sizeof(f->member), ": ");
    if (f->what[0])
        put_text(&o, "", f->what, sizeof(f->what), "");
    else
        put_error(&o, f->err ? f->err : err);
    if (f->offset != FAULT_NO_OFFSET) {
        char number[40];
        snprintf(number, sizeof(number), " (offset %" PRIu64 ")", f->offset);
        put_string(&o, number);
    }
    if (f->advice[0])
        put_text(&o, "; ", f->advice, sizeof(f->advice), "");
    if (size)
        buf[o.len < size ? o.len : size - 1] = '\0';
    return (int)o.len;
}
