/*
 * Numbers and names for people.
 *
 * A name in an archive may be any bytes. Bytes that could control a terminal or end a line are
 * printed as \xNN wherever the output goes: a log has lines, too. Only `ls` prints a name's own
 * bytes, since scripts read them.
 */
#include <errno.h>
#include <inttypes.h>

#include "cli.h"
#include "utf8.h"

const char *cli_format_bytes(uint64_t bytes, char buf[CLI_TEXT_LEN])
{
    static const char *const units[] = {"bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    if (bytes < 1024) {
        snprintf(buf, CLI_TEXT_LEN, "%" PRIu64 " %s", bytes, bytes == 1 ? "byte" : "bytes");
        return buf;
    }
    int unit = 0;
    double value = (double)bytes;
    while (value >= 1023.95 && unit < 6) {
        value /= 1024;
        unit++;
    }
    snprintf(buf, CLI_TEXT_LEN, "%.1f %s", value, units[unit]);
    return buf;
}

const char *cli_format_count(uint64_t count, char buf[CLI_TEXT_LEN])
{
    char digits[CLI_TEXT_LEN];
    int len = snprintf(digits, sizeof(digits), "%" PRIu64, count);
    char *out = buf;
    for (int i = 0; i < len; i++) {
        if (i && (len - i) % 3 == 0)
            *out++ = ',';
        *out++ = digits[i];
    }
    *out = '\0';
    return buf;
}

const char *cli_format_time(uint64_t ns, char buf[CLI_TEXT_LEN])
{
    uint64_t s = ns / 1000000000u;
    if (ns < 1000)
        snprintf(buf, CLI_TEXT_LEN, "%" PRIu64 " ns", ns);
    else if (ns < 1000000)
        snprintf(buf, CLI_TEXT_LEN, "%.1f us", (double)ns / 1e3);
    else if (ns < 1000000000)
        snprintf(buf, CLI_TEXT_LEN, "%.1f ms", (double)ns / 1e6);
    else if (s < 120)
        snprintf(buf, CLI_TEXT_LEN, "%.1f s", (double)ns / 1e9);
    else if (s < 7200)
        snprintf(buf, CLI_TEXT_LEN, "%" PRIu64 " min %" PRIu64 " s", s / 60, s % 60);
    else
        snprintf(buf, CLI_TEXT_LEN, "%" PRIu64 " h %" PRIu64 " min", s / 3600, s / 60 % 60);
    return buf;
}

void cli_print_safe(FILE *out, const char *bytes, size_t len)
{
    for (size_t i = 0; i < len;) {
        size_t n = utf8_printable_length(bytes + i, len - i);
        if (n)
            fwrite(bytes + i, 1, n, out);
        else
            fprintf(out, "\\x%02x", (unsigned char)bytes[i]);
        i += n ? n : 1;
    }
}

void cli_print_quoted(FILE *out, const char *word)
{
    putc('\'', out);
    for (; *word; word++)
        if (*word == '\'')
            fputs("'\\''", out);
        else
            putc(*word, out);
    putc('\'', out);
}

const char *cli_path_error(int err)
{
    switch (err < 0 ? -err : err) {
    case ENOENT:
        return "no such file or directory in the archive";
    case ENOTDIR:
        return "a component of the path is not a directory";
    case ELOOP:
        return "too many symbolic links";
    case EXDEV:
        return "a symbolic link or '..' leads out of the archive";
    default:
        return NULL;
    }
}
