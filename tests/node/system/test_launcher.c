/*
 * Rank and world size by the environment that launchers give.
 */
#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "launcher.h"
#include "suite.h"

/* Have this environment, and nothing else: name, value, name, value, ..., NULL. */
static void have(const char *const *words)
{
    clearenv();
    for (size_t i = 0; words[i]; i += 2)
        setenv(words[i], words[i + 1], 1);
}

static int found(const char *const *words, struct fault *fault, struct launcher *l)
{
    have(words);
    return launcher_find(fault, l);
}

static bool is_in_step(const char *const *words)
{
    have(words);
    return launcher_in_slurm_step();
}

static void check_found(const char *const *words, const char *name, unsigned rank,
                        unsigned world, int local)
{
    struct launcher l;
    struct fault fault = {0};
    ck_assert_int_eq(found(words, &fault, &l), 0);
    if (name)
        ck_assert_str_eq(l.name, name);
    else
        ck_assert_ptr_null(l.name);
    ck_assert_uint_eq(l.rank, rank);
    ck_assert_uint_eq(l.world, world);
    ck_assert_int_eq(l.local_rank, local);
}

#define ENV(...) ((const char *const[]){__VA_ARGS__, NULL})

START_TEST(without_a_launcher_it_is_one_of_one)
{
    check_found(ENV(NULL), NULL, 0, 1, -1);
    check_found(ENV("PATH", "/bin", "WORLD_SIZE", "8"), NULL, 0, 1, -1);
    check_found(ENV("RANK", "", "WORLD_SIZE", ""), NULL, 0, 1, -1);
}
END_TEST

START_TEST(each_launcher_is_known)
{
    check_found(ENV("RANK", "3", "WORLD_SIZE", "8", "LOCAL_RANK", "1"), "torchrun", 3, 8, 1);
    check_found(ENV("OMPI_COMM_WORLD_RANK", "2", "OMPI_COMM_WORLD_SIZE", "4",
                    "OMPI_COMM_WORLD_LOCAL_RANK", "0"),
                "Open MPI", 2, 4, 0);
    check_found(ENV("PMI_RANK", "5", "PMI_SIZE", "6"), "PMI", 5, 6, -1);
    check_found(ENV("MV2_COMM_WORLD_RANK", "0", "MV2_COMM_WORLD_SIZE", "2",
                    "MV2_COMM_WORLD_LOCAL_RANK", "0"),
                "MVAPICH2", 0, 2, 0);
    check_found(ENV("HOROVOD_RANK", "1", "HOROVOD_SIZE", "2", "HOROVOD_LOCAL_RANK", "1"),
                "Horovod", 1, 2, 1);
    check_found(ENV("FLUX_TASK_RANK", "7", "FLUX_JOB_SIZE", "64", "FLUX_TASK_LOCAL_ID", "3"),
                "Flux", 7, 64, 3);
    check_found(ENV("PALS_RANKID", "9", "PMI_SIZE", "10", "PALS_LOCAL_RANKID", "1"), "PALS", 9,
                10, 1);
    check_found(ENV("SLURM_PROCID", "31", "SLURM_NTASKS", "32", "SLURM_LOCALID", "7",
                    "SLURM_STEP_ID", "0"),
                "Slurm", 31, 32, 7);
}
END_TEST

START_TEST(the_most_specific_decides)
{
    check_found(ENV("SLURM_PROCID", "1", "SLURM_NTASKS", "2", "SLURM_STEP_ID", "4", "RANK", "9",
                    "WORLD_SIZE", "16", "LOCAL_RANK", "1"),
                "torchrun", 9, 16, 1);
    check_found(ENV("SLURM_PROCID", "0", "SLURM_NTASKS", "2", "SLURM_STEP_ID", "4",
                    "OMPI_COMM_WORLD_RANK", "3", "OMPI_COMM_WORLD_SIZE", "8"),
                "Open MPI", 3, 8, -1);
}
END_TEST

START_TEST(pmix_takes_the_size_from_what_started_it)
{
    check_found(ENV("PMIX_RANK", "3", "SLURM_PROCID", "3", "SLURM_STEP_NUM_TASKS", "4",
                    "SLURM_NTASKS", "64", "SLURM_STEP_ID", "0", "SLURM_LOCALID", "1"),
                "PMIx", 3, 4, 1);
}
END_TEST

/* A script that is no step is told to be task 0 of all: it must do the whole work. */
START_TEST(a_batch_script_is_not_rank_0)
{
    check_found(ENV("SLURM_PROCID", "0", "SLURM_NTASKS", "32", "SLURM_LOCALID", "0"), NULL, 0,
                1, -1);
    const char *const others[] = {"4294967291", "4294967290", "4294967292", "-5", "batch"};
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++)
        check_found(ENV("SLURM_PROCID", "0", "SLURM_NTASKS", "32", "SLURM_STEP_ID", others[i]),
                    NULL, 0, 1, -1);
    ck_assert(!is_in_step(ENV("SLURM_STEP_ID", "4294967291")) &&
              !is_in_step(ENV("SLURM_JOB_ID", "1")) &&
              is_in_step(ENV("SLURM_JOB_ID", "1", "SLURM_STEP_ID", "0")));
    check_found(ENV("SLURM_PROCID", "1", "SLURM_NPROCS", "2", "SLURM_STEPID", "3"), "Slurm", 1,
                2, -1);
}
END_TEST

/* Slurm's environment of `srun -n2 --pty`, where mpiexec may have been called in it. */
static void check_at_terminal(bool counts)
{
    const char *const slurm[] = {"SLURM_PROCID",  "1", "SLURM_NTASKS", "2",
                                 "SLURM_STEP_ID", "0", "PMIX_RANK",    "1"};
    const char *const mpich[] = {"SLURM_PROCID",
                                 "1",
                                 "SLURM_NTASKS",
                                 "2",
                                 "SLURM_STEP_ID",
                                 "0",
                                 "PMI_RANK",
                                 "1",
                                 "PMI_SIZE",
                                 "2",
                                 "MPI_LOCALRANKID",
                                 "1",
                                 NULL};
    struct launcher l;
    struct fault fault;
    for (int i = 0; i < 2; i++) { /* with PMIx, and without */
        const char *words[9] = {NULL};
        memcpy(words, slurm, (i ? 8 : 6) * sizeof(*words));
        ck_assert_int_eq(found((const char *const *)words, &fault, &l), 0);
        ck_assert_uint_eq(l.rank, counts ? 1 : 0);
        ck_assert_uint_eq(l.world, counts ? 2 : 1);
        ck_assert(strstr(l.note, "ank 1 of 2"));
        ck_assert(!strstr(l.note, "does not count") == counts);
    }
    check_found(mpich, "PMI", 1, 2, 1);
    check_found(ENV("RANK", "1", "WORLD_SIZE", "2", "SLURM_PROCID", "1", "SLURM_NTASKS", "2",
                    "SLURM_STEP_ID", "0"),
                "torchrun", 1, 2, -1);
    ck_assert_int_eq(
        found(ENV("SLURM_PROCID", "0", "SLURM_NTASKS", "1", "SLURM_STEP_ID", "0"), &fault, &l),
        0);
    ck_assert_str_eq(l.note, "");
}

static void wait_for(pid_t child)
{
    int status;
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert_int_eq(status, 0);
}

START_TEST(slurms_rank_does_not_count_in_a_shell_on_a_terminal)
{
    int terminal = posix_openpt(O_RDWR | O_NOCTTY);
    if (terminal < 0 || grantpt(terminal) < 0 || unlockpt(terminal) < 0) {
        printf("left out: there are no terminals (/dev/ptmx)\n");
        return;
    }
    pid_t leader = fork();
    if (leader == 0) {
        setsid();
        check_found(ENV("SLURM_PROCID", "1", "SLURM_NTASKS", "2", "SLURM_STEP_ID", "0"),
                    "Slurm", 1, 2, -1);
        ck_assert_int_ge(open(ptsname(terminal), O_RDWR), 0); /* now it is the session's */
        check_at_terminal(true);
        pid_t command = fork();
        if (command == 0) {
            setpgid(0, 0); /* as a shell with job control does */
            check_at_terminal(false);
            _exit(0);
        }
        wait_for(command);
        _exit(0);
    }
    wait_for(leader);
    close(terminal);
}
END_TEST

static void check_refused(const char *const *words, const char *variable)
{
    struct launcher l = {.rank = 77};
    struct fault fault = {0};
    ck_assert_int_eq(found(words, &fault, &l), -EINVAL);
    ck_assert_str_eq(fault.member, variable);
    ck_assert(fault.what[0] && fault.advice[0]);
    ck_assert_uint_eq(l.rank, 77);
}

START_TEST(nonsense_is_refused_by_the_name_of_the_variable)
{
    check_refused(ENV("RANK", "one", "WORLD_SIZE", "2"), "RANK");
    check_refused(ENV("RANK", "-1", "WORLD_SIZE", "2"), "RANK");
    check_refused(ENV("RANK", " 1", "WORLD_SIZE", "2"), "RANK");
    check_refused(ENV("RANK", "18446744073709551616", "WORLD_SIZE", "2"), "RANK");
    check_refused(ENV("RANK", "1", "WORLD_SIZE", "2x"), "WORLD_SIZE");
    check_refused(ENV("RANK", "2", "WORLD_SIZE", "2"), "RANK");
    check_refused(ENV("RANK", "0", "WORLD_SIZE", "0"), "RANK");
    check_refused(ENV("RANK", "0"), "RANK");
    check_refused(ENV("PMIX_RANK", "0"), "PMIX_RANK");
    check_refused(ENV("RANK", "0", "WORLD_SIZE", "1", "LOCAL_RANK", "a"), "LOCAL_RANK");
    check_refused(ENV("SLURM_PROCID", "4", "SLURM_NTASKS", "4", "SLURM_STEP_ID", "0"),
                  "SLURM_PROCID");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("launcher");
    TCase *tcase = tcase_create("launcher");
    tcase_add_test(tcase, without_a_launcher_it_is_one_of_one);
    tcase_add_test(tcase, each_launcher_is_known);
    tcase_add_test(tcase, the_most_specific_decides);
    tcase_add_test(tcase, pmix_takes_the_size_from_what_started_it);
    tcase_add_test(tcase, a_batch_script_is_not_rank_0);
    tcase_add_test(tcase, slurms_rank_does_not_count_in_a_shell_on_a_terminal);
    tcase_add_test(tcase, nonsense_is_refused_by_the_name_of_the_variable);
    suite_add_tcase(suite, tcase);
    return run_suite(suite);
}
