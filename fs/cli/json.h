/*
 * Writes JSON, one item after another.
 *
 *     struct json j = {.out = stdout, .lines = 1};
 *     json_open(&j, NULL, '{');
 *     json_text(&j, "archive", path, SIZE_MAX);
 *     json_number(&j, "files", count);
 *     json_close(&j, '}');
 *
 * `key` is NULL in an array and for the outermost item. Commas and line breaks come by
 * themselves, and so does the newline at the end.
 */
#ifndef ONEPOT_JSON_H
#define ONEPOT_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

struct json {
    FILE *out;
    unsigned lines; /* down to this depth each item has its own line */
    unsigned depth; /* objects and arrays that are open */
    bool has_items; /* the innermost of them does */
};

void json_open(struct json *j, const char *key, char bracket); /* '{' or '[' */
void json_close(struct json *j, char bracket);                 /* '}' or ']' */
void json_text(struct json *j, const char *key, const char *text, size_t max_len); /* or NULL */
void json_number(struct json *j, const char *key, uint64_t number);
void json_signed(struct json *j, const char *key, int64_t number);
void json_bool(struct json *j, const char *key, bool value);
void json_null(struct json *j, const char *key);

/* "left_out", the number of members that an index lacks, and "left_out_kinds". */
struct index;
void json_left_out(struct json *j, const struct index *index);

/*
 * Print a string, quotes included. A byte 0xNN outside valid UTF-8 becomes the lone surrogate
 * \udcNN, so that nothing is lost: os.fsencode turns the string from Python's json.loads back
 * into the same bytes. Characters that could control a terminal, or that split or reorder a
 * line, are escaped as \uNNNN: JSON is read by people, too.
 */
void json_string(FILE *out, const char *bytes, size_t len);

#endif
