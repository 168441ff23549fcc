/*
 * The short circuit's reads (fs/intercept): sequences of calls on descriptors of files whose
 * bytes lie in an archive, too. Each call is done twice, as the library does it and by the
 * kernel alone on a descriptor opened beside; results, bytes and positions must be the same.
 * Files in memory stand for those of a mount, and functions here for links.c.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "fuzz.h"
#include "io_private.h"

#define FILES 5u
#define FDS 4u
#define BUF_BYTES 3000u
#define ARCHIVE_BYTES 20000u
#define OWN_LEAST 300 /* as the library takes numbers that nobody else gets */

/* Bytes where they are, cut off by the archive's end, unknown; the last two lie in the table as
 * no daemon would write them: beyond the archive, and in a file that it has not. */
static const struct {
    uint64_t size, offset;
    bool is_known;
} about[FILES] = {{2000, 512, true},
                  {1, 4000, true},
                  {900, 5000, false},
                  {1500, ARCHIVE_BYTES - 700, true},
                  {1500, UINT64_C(1) << 40, true}};

static struct link mount_link;
static struct intercept_head head;
static int archive, others[FILES];
static struct pair {
    int fd, reference;
} pairs[FDS];
static uint8_t buf[BUF_BYTES], expected[BUF_BYTES];

/* ---- in the place of links.c ---- */

struct link *link_find(int fd, const struct stat *st)
{
    bool is_there = mount_link.dev == st->st_dev && st->st_ino <= mount_link.entries;

    (void)fd;
    return is_there && mount_link.words[st->st_ino - 1] ? &mount_link : NULL;
}

bool link_fd_is_good(const struct link *link, unsigned file, int fd)
{
    struct stat st;
    return fstat(fd, &st) == 0 && st.st_dev == link->file[file].is.dev &&
           st.st_ino == link->file[file].is.ino;
}

static int open_again(int fd, int flags)
{
    char path[40];
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    return open(path, flags | O_CLOEXEC);
}

bool link_renew(struct link *link, int fd)
{
    (void)fd;
    int fresh = open_again(archive, O_RDONLY), own = fcntl(fresh, F_DUPFD_CLOEXEC, OWN_LEAST);
    close(fresh);
    known_set(own, KNOWN_OWN);
    atomic_store(&link->file[0].fd, own);
    return true;
}

struct intercept_slot *link_slot(const struct link *link)
{
    return &link->head->slots[0];
}

/* ---- files ---- */

static int memory_file(const char *name, const uint8_t *bytes, size_t size)
{
    int fd = memfd_create(name, MFD_CLOEXEC);
    require(fd >= 0 && write(fd, bytes, size) == (ssize_t)size);
    return fd;
}

/* A word for each inode up to the last one, most of which are never touched. */
static _Atomic uint64_t *make_words(uint64_t entries)
{
    void *words = mmap(NULL, entries * sizeof(uint64_t), PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    require(words != MAP_FAILED);
    return words;
}

static void make_link(const uint8_t *bytes)
{
    struct stat st[FILES], own;
    uint64_t last = 0;

    for (unsigned i = 0; i < FILES; i++) {
        uint64_t at = about[i].offset < ARCHIVE_BYTES ? about[i].offset : 0;
        others[i] = memory_file("member", bytes + at, about[i].size);
        require(fstat(others[i], &st[i]) == 0);
        last = st[i].st_ino > last ? st[i].st_ino : last;
    }
    archive = memory_file("archive", bytes, ARCHIVE_BYTES);
    require(fstat(archive, &own) == 0);
    _Atomic uint64_t *words = make_words(last);
    _Atomic uint32_t *marks = calloc(1, intercept_marks_bytes(last));
    require(marks != NULL);
    mount_link = (struct link){.dev = st[0].st_dev,
                               .entries = last,
                               .files = 1,
                               .words = words,
                               .head = &head,
                               .marks = marks};
    for (unsigned i = 0; i < FILES; i++)
        words[st[i].st_ino - 1] = about[i].is_known ? INTERCEPT_IS_KNOWN | about[i].offset
                                                    : 1 /* a word, but not of a known place */;
    mount_link.file[0].is = (struct intercept_file){
        .dev = own.st_dev, .ino = own.st_ino, .size_bytes = ARCHIVE_BYTES, .is_memory = 1};
    atomic_store(&mount_link.file[0].fd, -1);
    atomic_store(&reading_is_on, true);
}

static void prepare(void)
{
    static uint8_t bytes[ARCHIVE_BYTES + 2000];
    if (mount_link.files)
        return;
    for (size_t i = 0; i < sizeof(bytes); i++)
        bytes[i] = (uint8_t)(i * 2654435761u >> 13);
    make_link(bytes);
}

/* ---- calls ---- */

static void close_seen(int fd)
{
    flight_closing(fd);
    close(fd);
    flight_closed(fd);
}

/* As interpose.c does it, unless it does not see it. Files that can be written to are seen. */
static void open_pair(struct pair *pair, unsigned file, unsigned how)
{
    static const int flags[] = {O_RDONLY, O_RDONLY, O_PATH, O_RDWR, O_WRONLY, O_APPEND};
    unsigned which = how % 6;

    pair->fd = open_again(others[file % FILES], flags[which]);
    pair->reference = open_again(others[file % FILES], flags[which]);
    require(pair->fd >= 0 && pair->reference >= 0);
    if (how < 128 || which > 2)
        known_set(pair->fd, reading_is_plain(flags[which]) ? KNOWN_PLAIN : KNOWN_FOREIGN);
}

static void close_pair(struct pair *pair, bool is_seen)
{
    if (is_seen)
        close_seen(pair->fd);
    else
        close(pair->fd);
    close(pair->reference);
}

static void dup_pair(struct pair *to, const struct pair *from, bool is_seen)
{
    struct pair made = {dup(from->fd), dup(from->reference)};

    flight_closed(made.fd);
    close_pair(to, is_seen);
    *to = made;
}

static void check_same(const struct pair *pair, ssize_t n, int err, ssize_t reference_n)
{
    require(n == reference_n && (n >= 0 || err == errno));
    require(memcmp(buf, expected, sizeof(buf)) == 0);
    require(lseek(pair->fd, 0, SEEK_CUR) == lseek(pair->reference, 0, SEEK_CUR));
}

static void read_pair(const struct pair *pair, size_t len)
{
    ssize_t n = reading_read(pair->fd, buf, len);
    if (n <= 0)
        n = read(pair->fd, buf, len);
    int err = errno;
    check_same(pair, n, err, read(pair->reference, expected, len));
}

static void pread_pair(const struct pair *pair, size_t len, off_t at)
{
    ssize_t n = reading_pread(pair->fd, buf, len, at);
    if (n <= 0)
        n = pread(pair->fd, buf, len, at);
    int err = errno;
    check_same(pair, n, err, pread(pair->reference, expected, len, at));
}

static void seek_pair(const struct pair *pair, off_t at, int whence)
{
    require(lseek(pair->fd, at, whence) == lseek(pair->reference, at, whence));
}

/* The library's own descriptor is closed, or another file's, by somebody who knows nothing. */
static void lose_archive(bool is_replaced)
{
    int own = atomic_load(&mount_link.file[0].fd);
    if (own >= 0 && is_replaced)
        dup2(others[0], own);
    else if (own >= 0)
        close(own); /* it may be closed already */
}

static void call(const uint8_t bytes[4])
{
    struct pair *pair = &pairs[bytes[1] % FDS];
    size_t len = (size_t)bytes[2] * 12 < BUF_BYTES ? (size_t)bytes[2] * 12 : BUF_BYTES;

    switch (bytes[0] % 12) {
    case 0:
        close_pair(pair, bytes[2] < 200);
        open_pair(pair, bytes[2], bytes[3]);
        break;
    case 1:
        dup_pair(pair, &pairs[bytes[2] % FDS], bytes[3] < 200);
        break;
    case 2:
        seek_pair(pair, ((off_t)bytes[2] - 50) * 11, bytes[3] % 4);
        break;
    case 3:
        lose_archive(bytes[2] & 1);
        break;
    case 4:
        require(!reading_is_mounted(pair->fd) || lseek(pair->fd, 0, SEEK_CUR) >= 0);
        break;
    case 5:
    case 6:
    case 7:
        pread_pair(pair, len, ((off_t)bytes[3] - 3) * 9);
        break;
    default:
        read_pair(pair, len);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    prepare();
    for (unsigned i = 0; i < FDS; i++)
        open_pair(&pairs[i], i, 0);
    for (size_t at = 0; at + 4 <= size && at < 4000; at += 4)
        call(data + at);
    for (unsigned i = 0; i < FDS; i++)
        close_pair(&pairs[i], true);
    lose_archive(false);
    return 0;
}

/* ---- seeds ---- */

uint8_t *fuzz_seed(unsigned number, size_t *ret_size)
{
    /* To the end and beyond; with seeks; closed unseen; without the archive; everything. */
    static const char *const seeds[] = {
        "\x09\x00\x20\x00\x09\x00\xff\x00\x09\x00\xff\x00\x09\x01\x01\x00\x09\x03\xff\x00",
        "\x02\x00\x60\x00\x09\x00\x40\x00\x02\x00\x10\x01\x05\x00\x40\x20\x09\x00\x01\x00",
        "\x09\x00\x20\x00\x00\x00\xd0\x80\x09\x00\x20\x00\x01\x01\x00\xff\x09\x01\x09\x00",
        "\x09\x00\x20\x00\x03\x00\x00\x00\x09\x00\x20\x00\x03\x00\x01\x00\x09\x00\x20\x00",
        "\x00\x00\x05\x04\x09\x00\x20\x00\x04\x00\x00\x00\x00\x00\x05\x02\x07\x00\x20\x10",
    };

    if (number > sizeof(seeds) / sizeof(seeds[0]))
        return NULL;
    *ret_size = number ? 20 : 400;
    uint8_t *seed = malloc(*ret_size);
    for (size_t i = 0; seed && i < *ret_size; i++)
        seed[i] = number ? (uint8_t)seeds[number - 1][i] : (uint8_t)(i * i * 2654435761u >> 21);
    return seed;
}
