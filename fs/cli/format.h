/*
 * Numbers in words, as arguments of printf. The text lives until the block ends.
 *
 *     cli_note("%s files, %s in %s", cli_count(files), cli_bytes(bytes), cli_time(ns));
 */
#ifndef ONEPOT_FORMAT_H
#define ONEPOT_FORMAT_H

#include "cli.h"

#define cli_bytes(bytes) cli_format_bytes((bytes), (char[CLI_TEXT_LEN]){0})
#define cli_count(count) cli_format_count((count), (char[CLI_TEXT_LEN]){0})
#define cli_time(ns) cli_format_time((ns), (char[CLI_TEXT_LEN]){0})

/* Bytes for each second of `ns`, as in "%s/s". */
#define cli_rate(bytes, ns) cli_bytes(per_second((bytes), (ns)))

static inline uint64_t per_second(uint64_t count, uint64_t ns)
{
    return ns ? (uint64_t)((double)count * 1e9 / (double)ns) : 0;
}

static inline double percent(uint64_t part, uint64_t whole)
{
    return whole ? 100.0 * (double)part / (double)whole : 0;
}

#endif
