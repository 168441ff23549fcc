/*
 * onepot doctor: reports this node's limits and faults.
 */
#include <string.h>

#include "cli.h"
#include "commands.h"
#include "doctor.h"

static const struct cli_usage usage = {
    "doctor", "[--json] [ARCHIVE|MOUNTPOINT]",
    "Say what this node allows and what is wrong: ways to mount, memory and CPUs of the\n"
    "job, places for copies, mounts that are dead; and how an archive would be read, or\n"
    "whether a mount answers. Exits with 0 if nothing is wrong.\n"
    "\n"
    "      --json  one object\n"};

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

static void print_text(const struct findings *f)
{
    for (size_t i = 0; i < f->count; i++) {
        const struct finding *item = &f->items[i];
        if (i == 0 || strcmp(item->section, f->items[i - 1].section) != 0)
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

static void print_json(const struct findings *f, bool works)
{
    printf("{\n  \"mount_works\": %s,\n  \"findings\": [", works ? "true" : "false");
    for (size_t i = 0; i < f->count; i++) {
        const struct finding *item = &f->items[i];
        printf("%s\n    {\"kind\": \"%s\", \"section\": \"%s\", \"subject\": ", i ? "," : "",
               kind_names[item->kind], item->section);
        cli_json_string(stdout, item->subject, strlen(item->subject));
        fputs(", \"text\": ", stdout);
        cli_json_string(stdout, item->text, strlen(item->text));
        fputs(", \"advice\": ", stdout);
        if (item->advice[0])
            cli_json_string(stdout, item->advice, strlen(item->advice));
        else
            fputs("null", stdout);
        putchar('}');
    }
    fputs("\n  ]\n}\n", stdout);
}

static bool has_wrong(const struct findings *f)
{
    for (size_t i = 0; i < f->count; i++)
        if (f->items[i].kind == FINDING_WRONG)
            return true;
    return f->failed;
}

#ifndef HAVE_FUSE
void doctor_mounting(struct findings *f)
{
    struct finding *finding =
        finding_add(f, FINDING_WRONG, "mounting", "FUSE", "this onepot was built without it");
    finding_advise(finding, "build it where libfuse3's development files are installed");
}

void doctor_leftovers(struct findings *f)
{
    (void)f;
}

bool doctor_mount(struct findings *f, const char *path)
{
    (void)f;
    (void)path;
    return false;
}
#endif

int command_doctor(int argc, char **argv)
{
    static const struct option longs[] = {{"json", no_argument, NULL, CLI_OPTION_OWN},
                                          CLI_OPTIONS_END};
    int opt, status = CLI_GO_ON;
    bool json = false;
    while ((opt = cli_getopt(&usage, argc, argv, "", longs, &status)) != -1)
        json |= opt == CLI_OPTION_OWN;
    if (status != CLI_GO_ON)
        return status;
    if (argc - optind > 1)
        return cli_usage_error(&usage, "one archive or mount point at a time");

    struct findings f = {0};
    uint64_t archive_bytes = 0;
    const char *path = optind < argc ? argv[optind] : NULL;
    doctor_mounting(&f);
    bool works = !has_wrong(&f);
    if (path && !doctor_mount(&f, path))
        doctor_archive(&f, path, &archive_bytes);
    doctor_memory(&f);
    doctor_cpus(&f);
    doctor_limits(&f, archive_bytes);
    doctor_storage(&f, archive_bytes);
    doctor_copies(&f);
    doctor_leftovers(&f);
    bool good = !has_wrong(&f);
    if (json)
        print_json(&f, works);
    else
        print_text(&f);
    findings_free(&f);
    return good ? CLI_OK : CLI_FAILED;
}
