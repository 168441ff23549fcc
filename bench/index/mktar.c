/*
 * Write a tar of many small members to standard output, or to a file: what an image
 * dataset looks like to an indexer, without making a million files first.
 *
 *     mktar FORMAT COUNT [BODY_BYTES [DIRECTORIES]] >FILE
 *
 * FORMAT is ustar, gnu, or pax; pax has what `tar --format=posix` writes for each
 * member, an extended header with three times to the nanosecond. Bodies are zeros; on
 * a regular file they are holes, so that large ones cost no disk.
 */
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { BLOCK = 512, RECORD = 10240, BUFFER = 1 << 20, SKIP = 1 << 16 };

enum variety { USTAR, GNU, PAX };

struct header {
    char name[100], mode[8], uid[8], gid[8], size[12], mtime[12], sum[8], type, link[100];
    char magic[6], version[2], owner[32], group[32], major[8], minor[8], prefix[155], pad[12];
};

static char buffer[BUFFER];
static size_t used;
static uint64_t written;
static bool can_seek;

static void die(const char *what)
{
    perror(what);
    exit(1);
}

static void flush(void)
{
    for (size_t at = 0; at < used;) {
        ssize_t n = write(STDOUT_FILENO, buffer + at, used - at);
        if (n <= 0)
            die("write");
        at += (size_t)n;
    }
    used = 0;
}

static void put(const void *bytes, size_t len)
{
    written += len;
    for (const char *p = bytes; len > 0;) {
        size_t n = len < BUFFER - used ? len : BUFFER - used;
        memcpy(buffer + used, p, n);
        used += n;
        p += n;
        len -= n;
        if (used == BUFFER)
            flush();
    }
}

static void put_zeros(uint64_t len)
{
    static const char zeros[BLOCK];
    if (can_seek && len >= SKIP) {
        flush();
        if (lseek(STDOUT_FILENO, (off_t)len, SEEK_CUR) < 0)
            die("seek");
        written += len;
        return;
    }
    for (; len > 0; len -= len < BLOCK ? len : BLOCK)
        put(zeros, len < BLOCK ? len : BLOCK);
}

static void pad(void)
{
    put_zeros((BLOCK - written % BLOCK) % BLOCK);
}

static void put_header(enum variety variety, char type, const char *name, uint64_t size,
                       unsigned mode, unsigned mtime)
{
    struct header h = {.type = type};
    unsigned sum = 0;
    /* Fields are filled to the brim where the format allows it: no terminator then. */
    memcpy(h.name, name, strlen(name));
    snprintf(h.mode, sizeof(h.mode), "%07o", mode & 07777777);
    snprintf(h.uid, sizeof(h.uid), "%07o", 1000u);
    snprintf(h.gid, sizeof(h.gid), "%07o", 1000u);
    snprintf(h.size, sizeof(h.size), "%011llo", (unsigned long long)size & 077777777777);
    snprintf(h.mtime, sizeof(h.mtime), "%011o", mtime);
    memcpy(h.magic, variety == GNU ? "ustar " : "ustar", 6);
    memcpy(h.version, variety == GNU ? " " : "00", 2);
    strcpy(h.owner, "researcher");
    strcpy(h.group, "lab");
    memset(h.sum, ' ', sizeof(h.sum));
    for (size_t i = 0; i < sizeof(h); i++)
        sum += ((unsigned char *)&h)[i];
    snprintf(h.sum, sizeof(h.sum), "%06o", sum & 0777777);
    put(&h, sizeof(h));
}

/* The three times as GNU tar writes them. */
static void put_extended(const char *name, unsigned mtime, uint64_t number)
{
    char body[BLOCK], header_name[100];
    const unsigned nsec = (unsigned)(number * 7919 % 1000000000);
    int len =
        snprintf(body, sizeof(body), "30 mtime=%u.%09u\n30 atime=%u.%09u\n30 ctime=%u.%09u\n",
                 mtime, nsec, mtime, nsec, mtime, nsec);
    snprintf(header_name, sizeof(header_name), "PaxHeaders/%.80s", name);
    put_header(PAX, 'x', header_name, (uint64_t)len, 0644, mtime);
    put(body, (size_t)len);
    pad();
}

static void put_member(enum variety variety, char type, const char *name, uint64_t size,
                       unsigned mode, uint64_t number)
{
    unsigned mtime = 1500000000u + (unsigned)(number % 100000000);
    if (variety == PAX)
        put_extended(name, mtime, number);
    put_header(variety, type, name, size, mode, mtime);
    put_zeros(size);
    pad();
}

static uint64_t number_of(const char *text)
{
    char *end;
    uint64_t n = strtoull(text, &end, 10);
    if (end == text || *end || n > UINT64_C(1) << 36) {
        fprintf(stderr, "mktar: '%s' is no number\n", text);
        exit(2);
    }
    return n;
}

int main(int argc, char **argv)
{
    static const char *const varieties[] = {"ustar", "gnu", "pax"};
    int variety = 0;
    while (argc > 1 && variety < 3 && strcmp(argv[1], varieties[variety]) != 0)
        variety++;
    if (argc < 3 || argc > 5 || variety == 3) {
        fputs("usage: mktar ustar|gnu|pax COUNT [BODY_BYTES [DIRECTORIES]] >FILE\n", stderr);
        return 2;
    }
    uint64_t count = number_of(argv[2]);
    uint64_t body = argc > 3 ? number_of(argv[3]) : 100;
    uint64_t directories = argc > 4 ? number_of(argv[4]) : 1000;
    struct stat st;
    can_seek = fstat(STDOUT_FILENO, &st) == 0 && S_ISREG(st.st_mode) && st.st_size == 0;

    uint64_t last = UINT64_MAX;
    for (uint64_t i = 0; i < count; i++) {
        char name[100];
        uint64_t directory = i * directories / count;
        if (directory != last) {
            snprintf(name, sizeof(name), "train/n%08llu/", (unsigned long long)directory);
            put_member((enum variety)variety, '5', name, 0, 0755, i);
            last = directory;
        }
        snprintf(name, sizeof(name), "train/n%08llu/n%08llu_%llu.JPEG",
                 (unsigned long long)directory, (unsigned long long)directory,
                 (unsigned long long)i);
        put_member((enum variety)variety, '0', name, body, 0644, i);
    }
    put_zeros(2 * BLOCK);
    put_zeros((RECORD - written % RECORD) % RECORD);
    flush();
    return 0;
}
