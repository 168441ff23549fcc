/* The short circuit's reads beside an archive that is changed in their midst. */
#include <setjmp.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include "io_private.h"
#include "suite.h"

#define BYTES 4000u

static struct intercept_head head;
static struct link mount_link = {.files = 1, .head = &head};
static int member, archive;
static uint8_t old[BYTES], buf[BYTES];

/* In the place of links.c. The archive is changed as soon as somebody has looked at it. */
static bool is_changed;

struct link *link_find(int fd, const struct stat *st)
{
    (void)fd;
    return st->st_dev == mount_link.dev ? &mount_link : NULL;
}

/* In the midst of a read; a signal comes then. */
static bool is_signalled;

bool link_fd_is_good(const struct link *link, unsigned file, int fd)
{
    static const uint8_t other[BYTES];
    bool is_good = !is_changed;

    (void)link, (void)file, (void)fd;
    if (is_signalled) {
        raise(SIGUSR1);
        is_signalled = false;
        return true;
    }
    is_changed = true;
    ck_assert_int_eq(pwrite(archive, other, BYTES, 0), BYTES);
    return is_good;
}

bool link_renew(struct link *link, int fd)
{
    (void)link, (void)fd;
    return false;
}

struct intercept_slot *link_slot(const struct link *link)
{
    return &link->head->slots[0];
}

static int memory_file(const char *name)
{
    int fd = memfd_create(name, MFD_CLOEXEC);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(pwrite(fd, old, BYTES, 0), BYTES);
    return fd;
}

static void setup(void)
{
    struct stat st;
    char path[40];

    memset(old, 'a', sizeof(old));
    int written = memory_file("member");
    snprintf(path, sizeof(path), "/proc/self/fd/%d", written);
    member = open(path, O_RDONLY | O_CLOEXEC);
    close(written);
    archive = memory_file("archive");
    ck_assert_int_eq(fstat(member, &st), 0);
    mount_link.dev = st.st_dev;
    mount_link.entries = st.st_ino;
    /* Only the member's word is touched. */
    _Atomic uint64_t *words = mmap(NULL, st.st_ino * sizeof(*words), PROT_READ | PROT_WRITE,
                                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    ck_assert(words != MAP_FAILED);
    atomic_store(&words[st.st_ino - 1], INTERCEPT_IS_KNOWN);
    mount_link.words = words;
    mount_link.marks = mmap(NULL, st.st_ino + 4, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    ck_assert((void *)mount_link.marks != MAP_FAILED);
    mount_link.file[0].is = (struct intercept_file){.size_bytes = BYTES, .is_memory = 1};
    atomic_store(&mount_link.file[0].fd, archive);
    atomic_store(&reading_is_on, true);
    known_set(member, KNOWN_PLAIN);
    is_changed = false;
}

static void teardown(void)
{
    close(member);
    close(archive);
}

START_TEST(bytes_are_those_of_the_archive_as_mounted)
{
    ck_assert_int_eq(reading_read(member, buf, BYTES), BYTES);
    ck_assert_mem_eq(buf, old, BYTES);
    ck_assert_int_eq(lseek(member, 0, SEEK_CUR), BYTES);
}
END_TEST

START_TEST(bytes_at_an_offset_are_so_too)
{
    ck_assert_int_eq(reading_pread(member, buf, 100, 50), 100);
    ck_assert_mem_eq(buf, old, 100);
    ck_assert_int_eq(reading_pread(member, buf, 100, 50), -1);
}
END_TEST

START_TEST(a_changed_archive_is_left_to_the_mount)
{
    is_changed = true;
    ck_assert_int_eq(reading_read(member, buf, BYTES), -1);
    ck_assert_int_eq(reading_pread(member, buf, BYTES, 0), -1);
    ck_assert_int_eq(lseek(member, 0, SEEK_CUR), 0);
}
END_TEST

/* Closes the member, and opens another file that gets its number. */
static void close_member(int number)
{
    int fd = member;

    (void)number;
    flight_closing(fd);
    close(fd);
    flight_closed(fd);
    ck_assert_int_eq(dup(archive), fd);
}

static long pauses(void)
{
    struct rusage usage;
    getrusage(RUSAGE_THREAD, &usage);
    return usage.ru_nvcsw;
}

START_TEST(a_handler_closes_what_its_thread_reads)
{
    signal(SIGUSR1, close_member);
    ck_assert_int_eq(lseek(archive, 7, SEEK_SET), 7);
    long before = pauses();
    is_signalled = true;
    ck_assert_int_eq(reading_read(member, buf, 100), -1);
    ck_assert_int_lt(pauses() - before, 20);         /* it does not wait for itself */
    ck_assert_int_eq(lseek(member, 0, SEEK_CUR), 7); /* the other file's */
    known_set(member, KNOWN_PLAIN);
    flight_closing(member); /* no read is left over */
    ck_assert_int_lt(pauses() - before, 20);
    flight_closed(member);
    signal(SIGUSR1, SIG_DFL);
}
END_TEST

static sigjmp_buf back;

static void jump(int number)
{
    (void)number;
    siglongjmp(back, 1);
}

START_TEST(a_handler_jumps_out_of_a_read)
{
    signal(SIGUSR1, jump);
    is_signalled = true;
    long before = pauses();
    if (sigsetjmp(back, 1) == 0)
        reading_read(member, buf, 100);
    is_signalled = false;
    ck_assert_int_eq(reading_pread(member, buf, 100, 0), 100);
    flight_closing(member);
    flight_closed(member);
    ck_assert_int_lt(pauses() - before, 20);
    signal(SIGUSR1, SIG_DFL);
}
END_TEST

static void handler_rewinds(int number)
{
    (void)number;
    ck_assert_int_eq(lseek(member, 0, SEEK_SET), 0);
}

/* Another reader of the descriptor has moved its position back: the file begins with this read.
 */
START_TEST(bytes_of_a_position_that_was_moved_meanwhile_are_counted)
{
    const struct intercept_slot *slot = &head.slots[0];
    uint64_t files = slot->files, reads = slot->reads, bytes = slot->bytes;

    signal(SIGUSR1, handler_rewinds);
    is_signalled = true;
    ck_assert_int_eq(lseek(member, 100, SEEK_SET), 100);
    ck_assert_int_eq(reading_read(member, buf, 50), 50);
    ck_assert_mem_eq(buf, old, 50);
    ck_assert_int_eq(lseek(member, 0, SEEK_CUR), 50);
    ck_assert_uint_eq(slot->files - files, 1);
    ck_assert_uint_eq(slot->reads - reads, 1);
    ck_assert_uint_eq(slot->bytes - bytes, 50);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("reading");
    TCase *changes = tcase_create("changes");

    tcase_add_checked_fixture(changes, setup, teardown);
    tcase_add_test(changes, bytes_are_those_of_the_archive_as_mounted);
    tcase_add_test(changes, bytes_at_an_offset_are_so_too);
    tcase_add_test(changes, a_changed_archive_is_left_to_the_mount);
    tcase_add_test(changes, a_handler_closes_what_its_thread_reads);
    tcase_add_test(changes, a_handler_jumps_out_of_a_read);
    tcase_add_test(changes, bytes_of_a_position_that_was_moved_meanwhile_are_counted);
    suite_add_tcase(suite, changes);
    return run_suite(suite);
}
