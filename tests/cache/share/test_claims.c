/*
 * Claims of processes on what their job may use: fair parts, a user's own word, and what a
 * killed process leaves.
 */
#include <check.h>
#include <dirent.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "share.h"
#include "suite.h"

#define MB (UINT64_C(1) << 20)
#define TOTAL (400 * MB)

static char base[64];

static void setup(void)
{
    suite_make_folder("claims", base, sizeof(base));
    setenv("ONEPOT_RUNTIME_DIR", base, 1);
}

/* One who has a claim, and what it was told. */
struct user {
    struct claim *claim;
    uint64_t bytes;
    uint64_t lent;      /* can't be taken back */
    uint64_t wants;     /* no more; 0: as before */
    unsigned processes; /* on its CPUs */
};

static uint64_t set(void *ctx, uint64_t bytes, uint64_t most_bytes, unsigned processes)
{
    struct user *user = ctx;
    ck_assert(user->wants == 0 || most_bytes == user->wants);
    user->processes = processes;
    user->bytes = bytes < user->lent ? user->lent : bytes;
    return user->bytes;
}

static int make(const char *job, uint64_t fixed, uint64_t most, struct claim **ret_claim)
{
    struct claim_options options = {.job = job,
                                    .total_bytes = TOTAL,
                                    .fixed_bytes = fixed,
                                    .most_bytes = most,
                                    .cpus_key = 7};
    return claim_new(&options, ret_claim);
}

static void begin(struct user *user, const char *job, uint64_t fixed)
{
    *user = (struct user){0};
    ck_assert_int_eq(make(job, fixed, 0, &user->claim), 0);
}

static void update(struct user *user)
{
    ck_assert_uint_eq(claim_update(user->claim, user->wants, set, user), user->bytes);
}

START_TEST(one_alone_has_all)
{
    struct user a;
    begin(&a, "12", 0);
    update(&a);
    ck_assert_uint_eq(a.bytes, TOTAL);
    claim_free(a.claim);
}
END_TEST

START_TEST(the_sum_is_never_more_than_there_is)
{
    struct user u[5];
    for (unsigned n = 0; n < 5; n++) {
        begin(&u[n], "12", 0);
        /* In any order: newcomers first, then last. */
        for (unsigned round = 0; round < 4; round++) {
            for (unsigned i = 0; i <= n; i++) {
                update(&u[round % 2 ? i : n - i]);
                uint64_t sum = 0;
                for (unsigned k = 0; k <= n; k++)
                    sum += u[k].bytes;
                ck_assert_uint_le(sum, TOTAL + 5 * CLAIM_LEAST_BYTES);
            }
        }
        for (unsigned k = 0; k <= n; k++) {
            ck_assert_uint_ge(u[k].bytes, TOTAL / (n + 1) * 14 / 16);
            ck_assert_uint_le(u[k].bytes, TOTAL / (n + 1) + CLAIM_LEAST_BYTES);
        }
    }
    for (unsigned k = 1; k < 5; k++)
        claim_free(u[k].claim);
    update(&u[0]);
    ck_assert_uint_eq(u[0].bytes, TOTAL);
    claim_free(u[0].claim);
}
END_TEST

START_TEST(a_users_word_is_taken_and_others_have_the_rest)
{
    struct user a, b;
    begin(&a, "12", 0);
    update(&a);
    begin(&b, "12", 300 * MB);
    update(&b);
    ck_assert_uint_eq(b.bytes, 300 * MB);
    update(&a);
    ck_assert_uint_eq(a.bytes, 100 * MB);
    claim_free(a.claim);
    claim_free(b.claim);
}
END_TEST

START_TEST(what_one_does_not_want_the_others_have)
{
    struct user a, b, c;
    begin(&a, "12", 0);
    begin(&b, "12", 0);
    begin(&c, "12", 0);
    c.wants = 40 * MB;
    for (unsigned round = 0; round < 4; round++) {
        update(&c);
        update(&b);
        update(&a);
    }
    ck_assert_uint_eq(c.bytes, 40 * MB);
    ck_assert_uint_eq(a.bytes, 180 * MB);
    ck_assert_uint_eq(b.bytes, 180 * MB);
    c.wants = UINT64_MAX;
    for (unsigned round = 0; round < 4; round++) {
        update(&a);
        update(&b);
        update(&c);
    }
    ck_assert_uint_ge(c.bytes, TOTAL / 3 * 14 / 16);
    ck_assert_uint_le(a.bytes + b.bytes + c.bytes, TOTAL);
    claim_free(a.claim);
    claim_free(b.claim);
    claim_free(c.claim);
}
END_TEST

START_TEST(what_is_lent_counts_until_it_is_back)
{
    struct user a, b;
    begin(&a, "12", 0);
    update(&a);
    a.lent = 300 * MB;
    begin(&b, "12", 0);
    update(&b);
    update(&a);
    ck_assert_uint_eq(a.bytes, 300 * MB);
    update(&b);
    ck_assert_uint_eq(b.bytes, 100 * MB);
    a.lent = 0;
    update(&a);
    update(&b);
    ck_assert_uint_eq(a.bytes, 200 * MB);
    ck_assert_uint_eq(b.bytes, 200 * MB);
    claim_free(a.claim);
    claim_free(b.claim);
}
END_TEST

START_TEST(other_jobs_have_their_own)
{
    struct user a, b, c;
    begin(&a, "12", 0);
    begin(&b, "123", 0);
    begin(&c, "", 0);
    update(&a);
    update(&b);
    update(&c);
    ck_assert_uint_eq(a.bytes, TOTAL);
    ck_assert_uint_eq(b.bytes, TOTAL);
    ck_assert_uint_eq(c.bytes, TOTAL);
    claim_free(a.claim);
    claim_free(b.claim);
    claim_free(c.claim);
}
END_TEST

static unsigned files_left(void)
{
    char path[128];
    unsigned n = 0;
    snprintf(path, sizeof(path), "%s/onepot-%u", base, (unsigned)geteuid());
    DIR *dir = opendir(path);
    for (struct dirent *e; dir && (e = readdir(dir));)
        n += e->d_name[0] != '.';
    if (dir)
        closedir(dir);
    return n;
}

START_TEST(what_a_killed_process_had_is_free_again)
{
    struct user a;
    int pipe_fd[2];
    char byte;
    ck_assert_int_eq(pipe(pipe_fd), 0);
    pid_t pid = fork();
    if (pid == 0) {
        struct user other;
        begin(&other, "12", 0);
        update(&other);
        if (write(pipe_fd[1], "x", 1) == 1)
            pause();
        _exit(1);
    }
    ck_assert_int_eq(read(pipe_fd[0], &byte, 1), 1);
    begin(&a, "12", 0);
    update(&a);
    ck_assert_uint_eq(a.bytes, CLAIM_LEAST_BYTES); /* the other one does not give back */
    ck_assert_uint_eq(claims_of_job("12").count, 2);
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    update(&a);
    ck_assert_uint_eq(a.bytes, TOTAL);
    ck_assert_uint_eq(files_left(), 1);
    claim_free(a.claim);
    ck_assert_uint_eq(files_left(), 0);
    close(pipe_fd[0]);
    close(pipe_fd[1]);
}
END_TEST

/*
 * A process with two claims. `deep`: it has a child, which lives on with what it inherited
 * until *ret_life is closed.
 */
static pid_t start_process(bool deep, int *ret_life)
{
    int pipe_fd[2], life[2];
    char byte;
    ck_assert_int_eq(pipe(pipe_fd), 0);
    ck_assert_int_eq(pipe(life), 0);
    pid_t pid = fork();
    if (pid == 0) {
        struct user one, two;
        close(life[1]);
        begin(&one, "12", 0);
        begin(&two, "12", 0);
        update(&one);
        if (deep && fork() == 0)
            _exit(read(life[0], &byte, 1) == 0 ? 0 : 1);
        if (write(pipe_fd[1], "x", 1) == 1)
            pause();
        _exit(1);
    }
    ck_assert_int_eq(read(pipe_fd[0], &byte, 1), 1);
    close(pipe_fd[0]);
    close(pipe_fd[1]);
    close(life[0]);
    *ret_life = life[1];
    return pid;
}

static void kill_process(pid_t pid)
{
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
}

START_TEST(processes_on_the_same_cpus_are_counted_once_each)
{
    struct user a;
    pid_t pids[2];
    int lives[2];
    begin(&a, "12", 0);
    for (unsigned i = 0; i < 2; i++)
        pids[i] = start_process(false, &lives[i]);
    update(&a);
    ck_assert_uint_eq(a.processes, 2);
    for (unsigned i = 0; i < 2; i++) {
        kill_process(pids[i]);
        close(lives[i]);
    }
    update(&a);
    ck_assert_uint_eq(a.processes, 0);
    claim_free(a.claim);
}
END_TEST

START_TEST(a_child_that_lives_on_keeps_no_claim_of_its_dead_parent)
{
    struct user a;
    int life;
    kill_process(start_process(true, &life));
    begin(&a, "12", 0);
    update(&a);
    close(life);
    ck_assert_uint_eq(a.bytes, TOTAL);
    ck_assert_uint_eq(a.processes, 0);
    claim_free(a.claim);
}
END_TEST

/* Who is the last of them removes the folder, which somebody else may just have opened. */
START_TEST(who_comes_when_the_last_one_goes_has_a_claim)
{
    pid_t pids[3];
    int status;
    for (unsigned i = 0; i < 3; i++) {
        pids[i] = fork();
        for (unsigned n = 0; pids[i] == 0 && n < 200; n++) {
            struct claim_options options = {
                .job = "12", .total_bytes = TOTAL, .unwatched = true};
            struct claim *claim;
            int r = claim_new(&options, &claim);
            if (r < 0)
                _exit(-r);
            if (claims_of_job("12").count == 0)
                _exit(100); /* it says nothing */
            claim_free(claim);
        }
        if (pids[i] == 0)
            _exit(0);
    }
    for (unsigned i = 0; i < 3; i++) {
        ck_assert_int_eq(waitpid(pids[i], &status, 0), pids[i]);
        ck_assert_int_eq(status, 0);
    }
}
END_TEST

START_TEST(a_folder_that_is_not_ours_alone_is_not_used)
{
    char path[128];
    struct claim *claim;
    snprintf(path, sizeof(path), "%s/onepot-%u", base, (unsigned)geteuid());
    ck_assert_int_eq(mkdir(path, 0777), 0);
    ck_assert_int_eq(chmod(path, 0777), 0);
    ck_assert_int_lt(make("12", 0, 0, &claim), 0);
    ck_assert_int_eq(access(path, F_OK), 0);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("claims");
    TCase *c = tcase_create("claims");
    tcase_add_checked_fixture(c, setup, NULL);
    tcase_add_test(c, one_alone_has_all);
    tcase_add_test(c, the_sum_is_never_more_than_there_is);
    tcase_add_test(c, a_users_word_is_taken_and_others_have_the_rest);
    tcase_add_test(c, what_one_does_not_want_the_others_have);
    tcase_add_test(c, what_is_lent_counts_until_it_is_back);
    tcase_add_test(c, processes_on_the_same_cpus_are_counted_once_each);
    tcase_add_test(c, a_child_that_lives_on_keeps_no_claim_of_its_dead_parent);
    tcase_add_test(c, other_jobs_have_their_own);
    tcase_add_test(c, what_a_killed_process_had_is_free_again);
    tcase_add_test(c, who_comes_when_the_last_one_goes_has_a_claim);
    tcase_add_test(c, a_folder_that_is_not_ours_alone_is_not_used);
    suite_add_tcase(s, c);
    return run_suite(s);
}
