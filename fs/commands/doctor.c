/*
 * onepot doctor: reports this node's limits and faults.
 */
#include <string.h>
#include <unistd.h>

#include "cli.h"
#include "commands.h"
#include "doctor.h"
#include "json.h"

static int doctor_main(int argc, char **argv);

const struct cli_command command_doctor = {
    "doctor", doctor_main, "show what this node allows, and what to mend",
    "[--json] [ARCHIVE|MOUNTPOINT]",
    "Show what this node allows and what to mend: ways to mount, memory and CPUs of the\n"
    "job, places for copies, dead mounts; and how an archive would be read, or whether a\n"
    "mount answers. Exits with 0 if nothing is wrong.\n"};

static const char *const kind_names[] = {
    [FINDING_FACT] = "fact",
    [FINDING_GOOD] = "good",
    [FINDING_WARNING] = "warning",
    [FINDING_WRONG] = "wrong",
};

static const char *const kind_marks[] = {
    [FINDING_FACT] = "  ",
    [FINDING_GOOD] = "ok",
    [FINDING_WARNING] = "! ",
    [FINDING_WRONG] = "!!",
};

static void command_doctor_text(const struct findings *f)
{
    for (size_t i = 0; i < f->count; i++) {
        const struct finding *item = &f->at[i];
        if (i == 0 || strcmp(item->section, f->at[i - 1].section) != 0)
            printf("%s%s\n", i ? "\n" : "", item->section);
        printf("  %s ", kind_marks[item->kind]);
        cli_print_safe(stdout, item->subject, strlen(item->subject));
        fputs(": ", stdout);
        cli_print_safe(stdout, item->text, strlen(item->text));
        if (item->advice[0]) {
            fputs("\n       ", stdout);
            cli_print_safe(stdout, item->advice, strlen(item->advice));
        }
        putchar('\n');
    }
}

static void command_doctor_json(const struct findings *f, bool works)
{
    struct json j = {.out = stdout, .lines = 2};
    json_open(&j, NULL, '{');
    json_bool(&j, "mount_works", works);
    json_open(&j, "findings", '[');
    for (size_t i = 0; i < f->count; i++) {
        const struct finding *item = &f->at[i];
        json_open(&j, NULL, '{');
        json_text(&j, "kind", kind_names[item->kind], SIZE_MAX);
        json_text(&j, "section", item->section, SIZE_MAX);
        json_text(&j, "subject", item->subject, SIZE_MAX);
        json_text(&j, "text", item->text, SIZE_MAX);
        json_text(&j, "advice", item->advice[0] ? item->advice : NULL, SIZE_MAX);
        json_close(&j, '}');
    }
    json_close(&j, ']');
    json_close(&j, '}');
}

static bool has_wrong(const struct findings *f)
{
    for (size_t i = 0; i < f->count; i++)
        if (f->at[i].kind == FINDING_WRONG)
            return true;
    return f->failed;
}

static int doctor_main(int argc, char **argv)
{
    bool json = false;
    const struct cli_option options[] = {{"--json", "print one object", .flag = &json}, {NULL}};
    int status = cli_parse(&command_doctor, options, argc, argv);
    if (status != CLI_GO_ON)
        return status;
    if (argc - optind > 1)
        return cli_usage_error(&command_doctor, "one archive or mount point at a time");

    struct findings f = {0};
    doctor_mounting(&f);
    self_test_mounting(&f);
    bool works = !has_wrong(&f);
    doctor_node(&f, optind < argc ? argv[optind] : NULL);
    bool good = !has_wrong(&f);
    if (json)
        command_doctor_json(&f, works);
    else
        command_doctor_text(&f);
    findings_free(&f);
    return good ? CLI_OK : CLI_FAILED;
}
