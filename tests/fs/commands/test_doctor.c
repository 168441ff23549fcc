/* What doctor finds: each limit with what to do about it, and what an archive is. */
#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "commands.h"
#include "doctor.h"
#include "suite.h"
#include "vector.h"

/* In the place of self-test.c. */
void self_test_mounting(struct findings *findings)
{
    (void)findings;
}

static char folder[64];
static struct findings found;

static void make_folder(void)
{
    suite_make_folder("doctor", folder, sizeof(folder));
}

static void enter(void)
{
    ck_assert_int_eq(chdir(folder), 0);
    setenv("XDG_CACHE_HOME", folder, 1);
    found = (struct findings){0};
}

static void leave(void)
{
    ck_assert(!found.failed);
    vector_free(&found);
}

static const struct finding *find(const char *subject)
{
    for (size_t i = 0; i < found.count; i++)
        if (strcmp(found.at[i].subject, subject) == 0)
            return &found.at[i];
    return NULL;
}

/* Some of what is found with this limit of the process. */
static const struct finding *with_limit(int resource, rlim_t limit, uint64_t archive_bytes,
                                        const char *subject)
{
    struct rlimit before, now;
    ck_assert_int_eq(getrlimit((__rlimit_resource_t)resource, &before), 0);
    now = (struct rlimit){limit, before.rlim_max};
    ck_assert_int_eq(setrlimit((__rlimit_resource_t)resource, &now), 0);
    vector_free(&found);
    found = (struct findings){0};
    doctor_limits(&found, archive_bytes);
    setrlimit((__rlimit_resource_t)resource, &before);
    return find(subject);
}

START_TEST(few_open_files_are_a_warning_with_the_command_that_helps)
{
    const struct finding *f = with_limit(RLIMIT_NOFILE, 255, 0, "open files");
    ck_assert_ptr_nonnull(f);
    ck_assert_int_eq(f->kind, FINDING_WARNING);
    ck_assert_ptr_nonnull(strstr(f->text, "255"));
    ck_assert_ptr_nonnull(strstr(f->advice, "ulimit -n 256"));
    f = with_limit(RLIMIT_NOFILE, 256, 0, "open files");
    ck_assert_int_eq(f->kind, FINDING_GOOD);
    ck_assert_str_eq(f->advice, "");
}
END_TEST

START_TEST(a_limit_of_files_counts_if_the_archive_is_larger)
{
    const struct finding *f = with_limit(RLIMIT_FSIZE, 1 << 20, 1 << 20, "size of files");
    ck_assert_int_eq(f->kind, FINDING_FACT);
    f = with_limit(RLIMIT_FSIZE, 1 << 20, (1 << 20) + 1, "size of files");
    ck_assert_int_eq(f->kind, FINDING_WARNING);
    ck_assert_ptr_nonnull(strstr(f->text, "--stage"));
    ck_assert_ptr_null(with_limit(RLIMIT_FSIZE, RLIM_INFINITY, 1 << 20, "size of files"));
}
END_TEST

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
START_TEST(few_addresses_are_told_and_whether_the_archive_can_be_mapped)
{
    const rlim_t limit = (rlim_t)4 << 30;
    const struct finding *f = with_limit(RLIMIT_AS, limit, limit / 2, "address space");
    ck_assert_int_eq(f->kind, FINDING_WARNING);
    ck_assert_ptr_null(strstr(f->text, "too little"));
    f = with_limit(RLIMIT_AS, limit, limit / 2 + 1, "address space");
    ck_assert_ptr_nonnull(strstr(f->text, "too little"));
    ck_assert_ptr_nonnull(strstr(f->advice, "ulimit -v unlimited"));
}
END_TEST
#endif

START_TEST(what_is_too_long_is_cut)
{
    char much[2 * FINDING_TEXT_MAX];
    memset(much, 'x', sizeof(much));
    much[sizeof(much) - 1] = '\0';
    found.section = "test";
    finding_add(&found, FINDING_FACT, much, "%s", much);
    finding_advise(&found, "%s", much);
    ck_assert_uint_eq(found.count, 1);
    ck_assert_str_eq(found.at[0].section, "test");
    ck_assert_uint_eq(strlen(found.at[0].subject), sizeof(found.at[0].subject) - 1);
    ck_assert_uint_eq(strlen(found.at[0].text), FINDING_TEXT_MAX - 1);
    ck_assert_uint_eq(strlen(found.at[0].advice), FINDING_TEXT_MAX - 1);
}
END_TEST

START_TEST(an_archive_is_named_with_where_its_index_is)
{
    found.archive_bytes = 1;
    doctor_archive(&found, "none.tar");
    ck_assert_uint_eq(found.archive_bytes, 0);
    ck_assert_uint_eq(found.count, 1);
    ck_assert_int_eq(found.at[0].kind, FINDING_WRONG);
    ck_assert_int_eq(system("echo x > x && tar -cf a.tar x && seq 1000 > numbers"), 0);
    struct stat st;
    ck_assert_int_eq(stat("a.tar", &st), 0);
    doctor_archive(&found, "a.tar");
    ck_assert_uint_eq(found.archive_bytes, (uint64_t)st.st_size);
    ck_assert(!found.is_packed);
    ck_assert_int_eq(find("a.tar")->kind, FINDING_GOOD);
    ck_assert_str_eq(find("a.tar")->text, "tar");
    ck_assert_str_eq(find("a.tar")->section, "archive");
    ck_assert_int_eq(find("index")->kind, FINDING_FACT);
    ck_assert_ptr_nonnull(strstr(find("index")->advice, "onepot index a.tar"));
    doctor_archive(&found, "numbers");
    ck_assert_uint_eq(found.archive_bytes, 0);
    ck_assert_int_eq(find("numbers")->kind, FINDING_WRONG);
}
END_TEST

/* What is found of an archive in a job of so many nodes. */
static const struct finding *in_a_job(const char *nodes, struct findings archive,
                                      const char *place)
{
    setenv("SLURM_JOB_NUM_NODES", nodes, 1);
    vector_free(&found);
    found = archive;
    doctor_job(&found, "a.tar", place);
    unsetenv("SLURM_JOB_NUM_NODES");
    return find("a.tar");
}

START_TEST(nodes_of_a_job_are_told_how_they_come_by_an_archive)
{
    const struct findings archive = {.archive_bytes = (uint64_t)150 << 30};
    const struct finding *f = in_a_job("64", archive, "/dev/shm");
    ck_assert_str_eq(find("nodes")->text, "64, by SLURM_JOB_NUM_NODES");
    ck_assert_int_eq(f->kind, FINDING_GOOD);
    ck_assert_ptr_nonnull(strstr(f->text, "together to /dev/shm"));
    ck_assert_ptr_nonnull(strstr(f->text, "gives 150.0 GiB, and not 9.4 TiB"));
    ck_assert_ptr_nonnull(strstr(f->advice, "onepot-mpi stage a.tar"));
    f = in_a_job("64", archive, NULL);
    ck_assert_int_eq(f->kind, FINDING_WARNING);
    ck_assert_ptr_nonnull(strstr(f->advice, "$TMPDIR"));
    ck_assert_ptr_nonnull(strstr(f->advice, "--order"));
    f = in_a_job("2", (struct findings){.archive_bytes = 5, .is_packed = true}, "/tmp");
    ck_assert_int_eq(f->kind, FINDING_WARNING);
    ck_assert_ptr_nonnull(strstr(f->advice, "onepot pack"));
    f = in_a_job("2", (struct findings){.archive_bytes = 5, .is_local = true}, "/tmp");
    ck_assert_int_eq(f->kind, FINDING_FACT);
    ck_assert_ptr_null(in_a_job("1", archive, "/tmp"));
    ck_assert_ptr_null(in_a_job("2", (struct findings){0}, "/tmp"));
    ck_assert_uint_eq(found.count, 0);
}
END_TEST

START_TEST(memory_cpus_and_places_are_found_anywhere)
{
    static const char *const sections[] = {"memory", "CPUs",   "limits",
                                           "places", "copies", "mounts"};
    doctor_node(&found, NULL);
    for (size_t n = 0, i; n < sizeof(sections) / sizeof(sections[0]); n++) {
        for (i = 0; i < found.count && strcmp(found.at[i].section, sections[n]) != 0; i++)
            ;
        ck_assert_msg(i < found.count, "nothing about %s", sections[n]);
    }
    for (size_t i = 0; i < found.count; i++) {
        ck_assert_ptr_nonnull(found.at[i].section);
        ck_assert_str_ne(found.at[i].subject, "");
        ck_assert_str_ne(found.at[i].text, "");
    }
}
END_TEST

START_TEST(a_filesystem_has_its_type)
{
    setenv("ONEPOT_RUNTIME_DIR", "/proc", 1);
    doctor_node(&found, NULL);
    unsetenv("ONEPOT_RUNTIME_DIR");
    ck_assert_ptr_nonnull(find("/proc"));
    ck_assert_int_eq(strncmp(find("/proc")->text, "proc (", 6), 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("doctor");
    TCase *tests = tcase_create("all");
    tcase_add_unchecked_fixture(tests, make_folder, NULL);
    tcase_add_checked_fixture(tests, enter, leave);
    tcase_add_test(tests, few_open_files_are_a_warning_with_the_command_that_helps);
    tcase_add_test(tests, a_limit_of_files_counts_if_the_archive_is_larger);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    tcase_add_test(tests, few_addresses_are_told_and_whether_the_archive_can_be_mapped);
#endif
    tcase_add_test(tests, what_is_too_long_is_cut);
    tcase_add_test(tests, an_archive_is_named_with_where_its_index_is);
    tcase_add_test(tests, nodes_of_a_job_are_told_how_they_come_by_an_archive);
    tcase_add_test(tests, memory_cpus_and_places_are_found_anywhere);
    tcase_add_test(tests, a_filesystem_has_its_type);
    suite_add_tcase(suite, tests);
    return run_suite(suite);
}
