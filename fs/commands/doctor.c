/*
 * onepot doctor: reports this node's limits and faults.
 */
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "cleanup.h"
#include "cli.h"
#include "commands.h"
#include "doctor.h"
#include "json.h"

static const struct cli_usage usage = {
    "doctor", "[--json] [ARCHIVE|MOUNTPOINT]",
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

/* May users give others access? fusermount3 looks it up in /etc/fuse.conf. */
static void see_allow_other(struct findings *f)
{
    char line[256], word[64];
    bool allowed = false;
    auto_fclose FILE *file = fopen("/etc/fuse.conf", "re");

    while (file && fgets(line, sizeof(line), file))
        allowed |= sscanf(line, " %63s", word) == 1 && strcmp(word, "user_allow_other") == 0;
    finding_add(f, FINDING_FACT, "--allow-other", "%s",
                allowed ? "is allowed to users (user_allow_other in /etc/fuse.conf)"
                        : "is not for users: /etc/fuse.conf has no user_allow_other");
}

static void see_mounting(struct findings *f)
{
    struct utsname name;

    f->section = "mounting";
    if (uname(&name) == 0)
        finding_add(f, FINDING_FACT, "kernel", "%s %s", name.sysname, name.release);
    if (geteuid() != 0)
        see_allow_other(f);
#ifdef HAVE_PRELOAD
    doctor_preload(f);
#endif
    self_test_mounting(f);
}

int command_doctor(int argc, char **argv)
{
    bool json = false;
    const struct cli_option options[] = {{"--json", "print one object", .flag = &json}, {NULL}};
    int status = cli_parse(&usage, options, argc, argv);
    if (status != CLI_GO_ON)
        return status;
    if (argc - optind > 1)
        return cli_usage_error(&usage, "one archive or mount point at a time");

    struct findings f = {0};
    struct doctor_archive archive = {0};
    const char *path = optind < argc ? argv[optind] : NULL;
    see_mounting(&f);
    bool works = !has_wrong(&f);
    bool is_mount = false;
#ifdef HAVE_FUSE
    is_mount = path && doctor_mount(&f, path);
#endif
    if (path && !is_mount)
        doctor_archive(&f, path, &archive);
    doctor_memory(&f);
    doctor_cpus(&f);
    doctor_limits(&f, archive.bytes);
    const char *place = doctor_storage(&f, archive.bytes);
    doctor_job(&f, path, &archive, place);
    doctor_copies(&f);
#ifdef HAVE_PYTHON
    doctor_python(&f);
#endif
#ifdef HAVE_FUSE
    doctor_leftovers(&f);
#endif
    bool good = !has_wrong(&f);
    if (json)
        command_doctor_json(&f, works);
    else
        command_doctor_text(&f);
    findings_free(&f);
    return good ? CLI_OK : CLI_FAILED;
}
