/*
 * JSON, with a line for each item where a person may want to read it, too.
 */
#include "json.h"

#include <inttypes.h>
#include <string.h>

#include "index.h"
#include "utf8.h"

static void break_line(const struct json *j)
{
    fprintf(j->out, "\n%*s", (int)(2 * j->depth), "");
}

/* The part before a value: comma, line, key. */
static void begin_item(struct json *j, const char *key)
{
    if (j->has_items)
        fputc(',', j->out);
    if (j->depth && j->depth <= j->lines)
        break_line(j);
    else if (j->has_items)
        fputc(' ', j->out);
    if (key)
        fprintf(j->out, "\"%s\": ", key);
    j->has_items = true;
}

void json_open(struct json *j, const char *key, char bracket)
{
    begin_item(j, key);
    fputc(bracket, j->out);
    j->depth++;
    j->has_items = false;
}

void json_close(struct json *j, char bracket)
{
    j->depth--;
    if (j->has_items && j->depth < j->lines)
        break_line(j);
    fputc(bracket, j->out);
    if (j->depth == 0)
        fputc('\n', j->out);
    j->has_items = true;
}

void json_text(struct json *j, const char *key, const char *text, size_t max_len)
{
    begin_item(j, key);
    if (text)
        json_string(j->out, text, strnlen(text, max_len));
    else
        fputs("null", j->out);
}

void json_number(struct json *j, const char *key, uint64_t number)
{
    begin_item(j, key);
    fprintf(j->out, "%" PRIu64, number);
}

void json_signed(struct json *j, const char *key, int64_t number)
{
    begin_item(j, key);
    fprintf(j->out, "%" PRId64, number);
}

void json_bool(struct json *j, const char *key, bool value)
{
    begin_item(j, key);
    fputs(value ? "true" : "false", j->out);
}

void json_null(struct json *j, const char *key)
{
    json_text(j, key, NULL, 0);
}

void json_left_out(struct json *j, const struct index *index)
{
    uint64_t counts[LEFT_OUT_KINDS];
    index_left_out_kinds(index, counts);
    json_number(j, "left_out", index_left_out(index));
    json_open(j, "left_out_kinds", '{');
    for (size_t i = 0; i < LEFT_OUT_KINDS; i++)
        json_number(j, left_out_words[i].name, counts[i]);
    json_close(j, '}');
}

static void print_character(FILE *out, const char *bytes, size_t len, uint32_t code)
{
    if (code == '"' || code == '\\')
        fprintf(out, "\\%c", (char)code);
    else if (!utf8_printable_length(bytes, len)) /* none of these is above U+FFFF */
        fprintf(out, "\\u%04x", (unsigned)code);
    else
        fwrite(bytes, 1, len, out);
}

void json_string(FILE *out, const char *bytes, size_t len)
{
    fputc('"', out);
    for (size_t i = 0; i < len;) {
        uint32_t code = 0;
        size_t n = utf8_length(bytes + i, len - i, &code);
        if (n)
            print_character(out, bytes + i, n, code);
        else
            fprintf(out, "\\udc%02x", (unsigned char)bytes[i]);
        i += n ? n : 1;
    }
    fputc('"', out);
}
