/*
 * Which format a file has is told by its beginning. An archive's last member may be an archive
 * itself, so an end counts only where something may lie in front of an archive.
 */
#include <check.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend.h"
#include "bytes.h"
#include "container.h"
#include "format_numbers.h"
#include "suite.h"
#include "zip_helper.h"

static uint8_t zip[1000], file[1 << 17];
static size_t zip_bytes;

static void make_zip(uint32_t base)
{
    struct zip_member members[] = {{.name = "one", .data = "1"}, {.name = "two", .data = "22"}};
    zip_bytes = zip_put(zip, members, 2, base);
}

/* The zip behind `front`; returns the length of both. */
static size_t join(const void *front, size_t len)
{
    memcpy(file, front, len);
    memcpy(file + len, zip, zip_bytes);
    return len + zip_bytes;
}

/* As part_look does with a file whose first bytes do not tell. */
static int look(size_t len, uint64_t offset, struct container *ret_container,
                const struct backend **ret_backend, struct fault *fault)
{
    struct source *source = NULL;
    *fault = (struct fault){0};
    *ret_container = (struct container){.offset = offset, .length = len - offset};
    ck_assert_int_eq(source_from_memory(file, len, "file", &source), 0);
    int r = offset ? 0 : container_find(source, fault, ret_container);
    source_close(source);
    if (r < 0)
        return r;
    if (ret_container->name)
        offset = ret_container->offset;
    ck_assert_int_eq(source_from_memory(file + offset, len - offset, "part", &source), 0);
    r = backend_find(source, fault, ret_backend, NULL);
    source_close(source);
    return r;
}

static void check_found(const char *what, size_t len, const struct backend *backend,
                        uint64_t offset)
{
    struct container container;
    const struct backend *found = NULL;
    struct fault fault;
    int r = look(len, 0, &container, &found, &fault);
    ck_assert_msg(r == 0, "%s: %d %s", what, r, fault.what);
    ck_assert_str_eq(found->name, backend->name);
    ck_assert_uint_eq(container.name ? container.offset : 0, offset);
}

static void check_refused(const char *what, size_t len, const char *words)
{
    struct container container;
    const struct backend *found = NULL;
    struct fault fault;
    int r = look(len, 0, &container, &found, &fault);
    ck_assert_msg(r == -ENOMSG, "%s: %d %s", what, r, found ? found->name : "");
    ck_assert_msg(strstr(fault.what, words), "%s: %s", what, fault.what);
    ck_assert_msg(fault.advice[0], "%s: no advice", what);
}

/* A header of ustar for a member of this size; in the oldest form without its magic. */
static void put_tar_header(uint8_t *block, const char *name, unsigned size, bool has_magic)
{
    unsigned sum = 0;
    memset(block, 0, 512);
    snprintf((char *)block, 100, "%s", name);
    snprintf((char *)block + 100, 8, "%07o", 0644);
    snprintf((char *)block + 124, 12, "%011o", size);
    memset(block + 148, ' ', 8);
    if (has_magic)
        memcpy(block + 257, "ustar\00000", 8);
    for (size_t i = 0; i < 512; i++)
        sum += block[i];
    snprintf((char *)block + 148, 8, "%06o", sum);
}

/* A tar of two zips, whose end is cut off behind `kept` bytes of the last one's padding. */
static size_t make_tar(bool has_magic, size_t kept)
{
    size_t at = 0;
    memset(file, 0, sizeof(file));
    for (unsigned i = 0; i < 2; i++) {
        put_tar_header(file + at, i ? "b.npz" : "a.npz", (unsigned)zip_bytes, has_magic);
        memcpy(file + at + 512, zip, zip_bytes);
        at += 512 + (i ? zip_bytes : (zip_bytes + 511) / 512 * 512);
    }
    return at + kept;
}

START_TEST(a_zip_begins_as_one)
{
    make_zip(0);
    check_found("a zip", join("", 0), &backend_zip, 0);
    check_found("one that was to be split", join("PK00", 4), &backend_zip, 0);
    check_found("one that is split", join("PK\7\10", 4), &backend_zip, 0);
    memset(file, 0, 100);
    memcpy(file, "PK\5\6", 4);
    check_found("an empty one", 22, &backend_zip, 0);
}
END_TEST

START_TEST(a_zip_may_lie_behind_a_script_or_a_program)
{
    static const struct {
        const char *name, *front;
        size_t len;
    } fronts[] = {{"script", "#!/bin/sh\nexit\n", 15},
                  {"script and zeros", "#!/bin/sh\nexit\n\0\0\0", 18},
                  {"ELF", "\177ELF, and no more of it", 23},
                  {"MZ", "MZ\x90\0, and no more of it", 23}};
    for (size_t i = 0; i < sizeof(fronts) / sizeof(*fronts); i++)
        for (unsigned whole = 0; whole < 2; whole++) { /* offsets are those in the file */
            make_zip(whole ? (uint32_t)fronts[i].len : 0);
            check_found(fronts[i].name, join(fronts[i].front, fronts[i].len), &backend_zip,
                        fronts[i].len);
        }
}
END_TEST

START_TEST(behind_anything_else_a_zip_is_not_the_file)
{
    static const char ending[] = "ends like a zip";
    static const struct {
        const char *name, *front;
        size_t len;
        const char *words;
    } fronts[] = {
        {"JPEG", "\xff\xd8\xff\xe0 and so on", 14, ending},
        {"cpio", "070701000000010000", 18, "is a cpio archive"},
        {"ar", "!<arch>\na.zip/          ", 24, "is an ar archive"},
        {"7z", "7z\xbc\xaf\x27\x1c\0\4", 8, "is a 7z archive"},
        {"rar", "Rar!\x1a\7\1\0", 8, "is a RAR archive"},
        {"warc", "WARC/1.0\r\n", 10, "is a WARC file"},
        {"text", "text\n", 5, ending},
        {"one byte", "x", 1, ending},
        {"zeros", "\0\0\0\0\0\0\0\0", 8, ending},
    };
    for (size_t i = 0; i < sizeof(fronts) / sizeof(*fronts); i++) {
        make_zip(0);
        check_refused(fronts[i].name, join(fronts[i].front, fronts[i].len), fronts[i].words);
        make_zip((uint32_t)fronts[i].len);
        check_refused(fronts[i].name, join(fronts[i].front, fronts[i].len), fronts[i].words);
    }
    make_zip(0);
    size_t len = join("", 0);
    for (size_t i = 0; i < 4; i++) {
        join("", 0);
        file[i] ^= 0xff;
        check_refused("a damaged zip", len, ending);
    }
    check_refused("behind a script that is not text", join("#!\n\1\0\1\n", 7), "is a script");
}
END_TEST

START_TEST(a_damaged_tar_is_not_its_last_member)
{
    static const size_t kept[] = {0, 1, 9000};
    static const char words[] = "is a tar whose first header is damaged";
    make_zip(0);
    for (size_t i = 0; i < 2 * sizeof(kept) / sizeof(*kept); i++) {
        bool has_magic = i % 2 == 0;
        size_t len = make_tar(has_magic, kept[i / 2]);
        check_found("whole", len, &backend_tar, 0);
        file[0] ^= 0xff;
        check_refused("its first byte", len, words);
        memset(file, 0, 500);
        check_refused("its first bytes", len, words);
        memset(file, 0, 512);
        check_refused("its first block", len, words);
        make_tar(has_magic, kept[i / 2]);
        memset(file + 148, '7', 7);
        check_refused("its sum", len, words);
        make_tar(has_magic, kept[i / 2]);
        memcpy(file, "MZ", 3);
        check_refused("a name like a program's magic", len, words);
    }
}
END_TEST

/* Nothing near the beginning tells that it is a tar. */
START_TEST(a_damaged_tar_with_a_long_member_is_no_program_because_of_its_name)
{
    enum { LONG = 8192, LAST = 512 + LONG };
    make_zip(0);
    memset(file, 0, LAST);
    put_tar_header(file, "MZ.npz", LONG, false);
    put_tar_header(file + LAST, "b.npz", (unsigned)zip_bytes, false);
    memcpy(file + LAST + 512, zip, zip_bytes);
    check_found("whole", LAST + 512 + zip_bytes, &backend_tar, 0);
    memset(file + 148, '7', 7);
    check_refused("damaged", LAST + 512 + zip_bytes, "first header is damaged");
}
END_TEST

START_TEST(a_damaged_tar_behind_a_script_is_not_its_last_member)
{
    static const char script[] = "#!/bin/sh\nexit\n";
    make_zip(0);
    size_t len = make_tar(true, 0), front = strlen(script);
    memmove(file + front, file, len);
    memcpy(file, script, front);
    check_found("whole", front + len, &backend_tar, front);
    file[front] ^= 1;
    check_refused("damaged", front + len, "is a script");
}
END_TEST

START_TEST(a_sum_of_tar_ends_at_its_blank)
{
    make_zip(0);
    size_t len = make_tar(true, 0);
    file[155] = '7';
    check_found("more behind the NUL", len, &backend_tar, 0);
    file[154] = '7';
    check_refused("no NUL", len, "first header is damaged");
}
END_TEST

START_TEST(a_tar_whose_name_begins_like_a_program_is_one)
{
    static const char *const names[] = {"MZ", "#!/bin/sh\nexit\n", "\177ELF"};
    make_zip(0);
    for (size_t i = 0; i < 3; i++) {
        size_t len = make_tar(true, 0);
        put_tar_header(file, names[i], (unsigned)zip_bytes, true);
        check_found(names[i], len, &backend_tar, 0);
    }
}
END_TEST

/* The footer has the length of its own file, at this place. */
static size_t put_footer(size_t at, uint64_t file_bytes)
{
    memset(file + at, 0, 512);
    memcpy(file + at, "onepotFT", 8);
    bytes_put_le64(file + at + 72, file_bytes);
    return at + 512;
}

START_TEST(the_trailer_of_another_archive_is_not_the_file_s)
{
    make_zip(0);
    size_t tar = (make_tar(true, 0) + 511) / 512 * 512;
    check_found("its own", put_footer(tar, tar + 512), &backend_onepot, 0);
    check_found("a tar's last member's", put_footer(tar, 1024), &backend_onepot, 0);
    memset(file, 'x', tar);
    check_refused("behind anything else", put_footer(tar, 1024), "not an archive");
}
END_TEST

START_TEST(a_format_has_one_number_for_good)
{
    ck_assert_uint_eq(backend_tar.number, FORMAT_TAR);
    ck_assert_uint_eq(backend_onepot.number, FORMAT_ONEPOT);
    ck_assert_uint_eq(backend_zip.number, FORMAT_ZIP);
    ck_assert_uint_eq(backend_tfrecord.number, FORMAT_TFRECORD);
#ifdef HAVE_SQUASHFUSE
    ck_assert_uint_eq(backend_squashfs.number, FORMAT_SQUASHFS);
#endif
    for (size_t i = 0; backend_registry[i]; i++) {
        ck_assert_uint_gt(backend_registry[i]->number, 0); /* a union's */
        ck_assert_ptr_eq(backend_of_number(backend_registry[i]->number), backend_registry[i]);
    }
    ck_assert_ptr_null(backend_of_number(0));
}
END_TEST

static Suite *format_suite(void)
{
    Suite *suite = suite_create("format");
    TCase *tcase = tcase_create("format");
    tcase_add_test(tcase, a_zip_begins_as_one);
    tcase_add_test(tcase, a_zip_may_lie_behind_a_script_or_a_program);
    tcase_add_test(tcase, behind_anything_else_a_zip_is_not_the_file);
    tcase_add_test(tcase, a_damaged_tar_is_not_its_last_member);
    tcase_add_test(tcase, a_damaged_tar_with_a_long_member_is_no_program_because_of_its_name);
    tcase_add_test(tcase, a_damaged_tar_behind_a_script_is_not_its_last_member);
    tcase_add_test(tcase, a_sum_of_tar_ends_at_its_blank);
    tcase_add_test(tcase, a_tar_whose_name_begins_like_a_program_is_one);
    tcase_add_test(tcase, the_trailer_of_another_archive_is_not_the_file_s);
    tcase_add_test(tcase, a_format_has_one_number_for_good);
    suite_add_tcase(suite, tcase);
    return suite;
}

int main(void)
{
    return run_suite(format_suite());
}
