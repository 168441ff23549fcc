/*
 * Messages: faults become lines. Every message is built in memory and written at once, so that
 * the lines of several processes (the ranks of a job share one log) do not mix.
 */
#include "cli.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio_ext.h>
#include <stdlib.h>
#include <string.h>

#include "cleanup.h"

/* ---- messages ---- */

/* "onepot COMMAND: FILE: text" to standard error; command and file may be NULL. */
static void print_message(const char *command, const char *file, const char *format,
                          va_list args)
{
    auto_free char *text = NULL;
    auto_free char *line = NULL;
    size_t len = 0;
    if (vasprintf(&text, format, args) < 0)
        text = NULL;
    FILE *out = text ? open_memstream(&line, &len) : NULL;
    if (!out) {
        fputs("onepot: out of memory\n", stderr);
        return;
    }
    fprintf(out, command ? "onepot %s: " : "onepot: ", command);
    if (file) {
        cli_print_safe(out, file, strlen(file));
        fputs(": ", out);
    }
    cli_print_safe(out, text, strlen(text));
    fputc('\n', out);
    if (fclose(out) == 0)
        fwrite(line, 1, len, stderr);
}

int cli_failf(const char *file, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    print_message(NULL, file, format, args);
    va_end(args);
    return CLI_FAILED;
}

int cli_fail(const char *file, int err, const struct fault *fault)
{
    int len = fault_describe(fault, err, file, NULL, 0);
    auto_free char *text = malloc((size_t)len + 1);
    if (!text)
        return cli_failf(NULL, "out of memory");
    fault_describe(fault, err, file, text, (size_t)len + 1);
    return cli_failf(NULL, "%s", text);
}

void cli_note(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    print_message(NULL, NULL, format, args);
    va_end(args);
}

int cli_usage_error(const struct cli_command *command, const char *format, ...)
{
    auto_free char *with_hint = NULL;
    va_list args;
    va_start(args, format);
    if (asprintf(&with_hint, "%s; see 'onepot %s --help'", format, command->name) < 0)
        with_hint = NULL;
    print_message(command->name, NULL, with_hint ? with_hint : format, args);
    va_end(args);
    return CLI_USAGE;
}

int cli_finish(int status)
{
    bool pending = __fpending(stdout) > 0;
    bool failed = ferror(stdout) != 0;
    int err = 0;
    if (fclose(stdout) != 0)
        err = errno;
    /* A program started without standard output may print nothing. */
    if (!failed && (!err || (err == EBADF && !pending)))
        return status;
    cli_failf("standard output", "%s",
              err ? fault_errno(err) : "not everything could be written");
    return status ? status : CLI_FAILED;
}
