/* What records are made of: their sums, fields of protobuf, integers as text. */
#include <check.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "tfrecord.h"
#include "protobuf.h"
#include "suite.h"

START_TEST(sums_are_those_of_the_standard)
{
    uint8_t bytes[48];
    ck_assert_uint_eq(crc32c(0, "123456789", 9), 0xe3069283);
    ck_assert_uint_eq(crc32c(0, NULL, 0), 0);
    memset(bytes, 0, 32);
    ck_assert_uint_eq(crc32c(0, bytes, 32), 0x8a9136aa); /* of RFC 3720, as the next two */
    memset(bytes, 0xff, 32);
    ck_assert_uint_eq(crc32c(0, bytes, 32), 0x62a8ab43);
    for (uint8_t i = 0; i < sizeof(bytes); i++)
        bytes[i] = i;
    ck_assert_uint_eq(crc32c(0, bytes, 32), 0x46dd794e);
    for (size_t cut = 0; cut <= sizeof(bytes); cut++)
        ck_assert_uint_eq(crc32c(crc32c(0, bytes, cut), bytes + cut, sizeof(bytes) - cut),
                          crc32c(0, bytes, sizeof(bytes)));
}
END_TEST

/* Each way has its tests only where it is the one that is taken. */
START_TEST(both_ways_to_a_sum_agree)
{
    static uint8_t bytes[4000];
    suite_fill_noise(bytes, sizeof(bytes));
    ck_assert_uint_eq(crc32c_by_table(0, "123456789", 9), 0xe3069283);
    for (size_t from = 0; from < 17; from++)
        for (size_t len = 0; len < 300; len++)
            ck_assert_uint_eq(crc32c_by_table((uint32_t)len, bytes + from, len),
                              crc32c((uint32_t)len, bytes + from, len));
    ck_assert_uint_eq(crc32c_by_table(0, bytes, sizeof(bytes)),
                      crc32c(0, bytes, sizeof(bytes)));
}
END_TEST

START_TEST(numbers_have_at_most_64_bits)
{
    static const struct {
        const char *bytes;
        size_t len, used;
        uint64_t value;
    } cases[] = {
        {"\x00", 1, 1, 0},
        {"\x7f", 1, 1, 127},
        {"\x80\x01", 2, 2, 128},
        {"\x80\x80\x00", 3, 3, 0},
        {"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", 10, 10, UINT64_MAX},
        {"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02", 10, 0, 0},
        {"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x81\x00", 11, 0, 0},
        {"\x80", 1, 0, 0},
        {"", 0, 0, 0},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct cursor c = {(const uint8_t *)cases[i].bytes, cases[i].len};
        uint64_t value = 0;
        ck_assert_int_eq(protobuf_varint(&c, &value), cases[i].used > 0);
        ck_assert_uint_eq(value, cases[i].value);
        ck_assert_uint_eq(c.left, cases[i].len - cases[i].used);
    }
}
END_TEST

START_TEST(fields_have_four_forms_and_lie_within_their_message)
{
    /* 1: 300, 2: "hi", 3: 32 bits, 4: 64 bits */
    static const uint8_t message[] = {0x08, 0xac, 2, 0x12, 2, 'h', 'i', 0x1d, 1, 0, 0,
                                      0,    0x21, 2, 0,    0, 0,   0,   0,    0, 0};
    static const size_t ends[] = {0, 3, 7, 12, 21};
    for (size_t len = 0; len <= sizeof(message); len++) {
        struct cursor c = {message, len};
        struct protobuf_field f = {.number = 0};
        size_t whole = 0;
        while (whole < 4 && len >= ends[whole + 1])
            whole++;
        for (uint32_t i = 1; i <= whole; i++) {
            ck_assert(protobuf_next(&c, &f));
            ck_assert_uint_eq(f.number, i);
        }
        ck_assert(!protobuf_next(&c, &f));
        ck_assert_uint_eq(f.number, whole);
        if (whole == 2)
            ck_assert(f.bytes.left == 2 && memcmp(f.bytes.at, "hi", 2) == 0);
        if (whole == 4)
            ck_assert_uint_eq(f.value, 2);
    }
    static const uint8_t odd[][2] = {{0x00, 1}, {0x0b, 0x0c}, {0x0e, 0}, {0x0f, 0}, {0x0c, 0}};
    for (size_t i = 0; i < sizeof(odd) / sizeof(odd[0]); i++) {
        struct cursor c = {odd[i], 2};
        struct protobuf_field f;
        ck_assert(!protobuf_next(&c, &f));
    }
}
END_TEST

START_TEST(integers_are_text_of_the_length_that_was_counted)
{
    static const uint8_t list[] = {0x08, 5,    0x0a, 11,   0,    0xff, 0xff, 0xff, 0xff,
                                   0xff, 0xff, 0xff, 0xff, 0xff, 0x01, 0x08, 0x80, 0x01};
    static const char text[] = "5\n0\n-1\n128";
    char room[sizeof(text)];
    size_t len = 0;
    uint64_t numbers = 0;
    ck_assert_int_eq(protobuf_int64_text(list, sizeof(list), NULL, 0, &len, &numbers), 0);
    ck_assert_uint_eq(len, sizeof(text) - 1);
    ck_assert_uint_eq(numbers, 4);
    for (size_t n = 0; n < len; n++)
        ck_assert_int_eq(protobuf_int64_text(list, sizeof(list), room, n, &len, &numbers),
                         -EUCLEAN);
    ck_assert_int_eq(protobuf_int64_text(list, sizeof(list), room, len, &len, &numbers), 0);
    ck_assert_int_eq(memcmp(room, text, len), 0);
    for (size_t cut = 0; cut < sizeof(list); cut++)
        ck_assert_int_eq(protobuf_int64_text(list, cut, room, sizeof(room), &len, &numbers),
                         cut == 0 || cut == 2 || cut == 15 ? 0 : -EUCLEAN);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("tfrecord");
    TCase *tests = tcase_create("tfrecord");
    tcase_add_test(tests, sums_are_those_of_the_standard);
    tcase_add_test(tests, both_ways_to_a_sum_agree);
    tcase_add_test(tests, numbers_have_at_most_64_bits);
    tcase_add_test(tests, fields_have_four_forms_and_lie_within_their_message);
    tcase_add_test(tests, integers_are_text_of_the_length_that_was_counted);
    suite_add_tcase(suite, tests);
    return run_suite(suite);
}
