/*
 * Which job a process belongs to, by the environment that batch systems give.
 */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "job.h"
#include "suite.h"

static void forget_all(void)
{
    static const char *const names[] = {
        "SLURM_JOB_ID", "SLURM_JOBID",  "SLURM_STEP_ID", "SLURM_STEPID", "PBS_JOBID",
        "LSB_JOBID",    "LSB_JOBINDEX", "FLUX_JOB_ID",   "OAR_JOB_ID",   "COBALT_JOBID",
        "JOB_ID",       "SGE_TASK_ID",  "SGE_ROOT",      "SGE_CELL"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        unsetenv(names[i]);
}

static void check_job(const char *id, const char *step)
{
    struct job job;
    job_detect(&job);
    ck_assert_str_eq(job.id, id);
    ck_assert_str_eq(job.step, step);
}

START_TEST(outside_a_job_both_are_empty)
{
    forget_all();
    check_job("", "");
    setenv("SLURM_JOB_ID", "", 1);
    check_job("", "");
}
END_TEST

START_TEST(nodes_are_counted_from_their_number_or_from_processes_by_node)
{
    static const struct {
        const char *name, *value, *each_name, *each;
        unsigned nodes;
    } cases[] = {
        {"SLURM_JOB_NUM_NODES", "64", NULL, NULL, 64},
        {"SLURM_NNODES", "2", NULL, NULL, 2},
        {"FLUX_JOB_NNODES", "3", NULL, NULL, 3},
        {"PBS_NUM_NODES", "5", NULL, NULL, 5},
        {"GROUP_WORLD_SIZE", "4", NULL, NULL, 4},
        {"WORLD_SIZE", "16", "LOCAL_WORLD_SIZE", "8", 2},
        {"OMPI_COMM_WORLD_SIZE", "9", "OMPI_COMM_WORLD_LOCAL_SIZE", "4", 3},
        {"MV2_COMM_WORLD_SIZE", "8", "MV2_COMM_WORLD_LOCAL_SIZE", "4", 2},
        {"PMI_SIZE", "4", "MPI_LOCALNRANKS", "2", 2},
        {"WORLD_SIZE", "16", "LOCAL_WORLD_SIZE", "0", 1},
        {"WORLD_SIZE", "16", NULL, NULL, 1},
        {"SLURM_JOB_NUM_NODES", "-3", NULL, NULL, 1},
        {"SLURM_JOB_NUM_NODES", "3 ", NULL, NULL, 1},
        {"SLURM_JOB_NUM_NODES", "99999999999999999999", NULL, NULL, 1},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const char *variable = "";
        clearenv();
        setenv(cases[i].name, cases[i].value, 1);
        if (cases[i].each_name)
            setenv(cases[i].each_name, cases[i].each, 1);
        ck_assert_uint_eq(job_nodes(&variable), cases[i].nodes);
        if (cases[i].nodes > 1)
            ck_assert_str_eq(variable, cases[i].name);
        else
            ck_assert_ptr_null(variable);
    }
}
END_TEST

START_TEST(each_batch_system_is_known)
{
    static const struct {
        const char *name, *value, *id;
    } cases[] = {
        {"SLURM_JOB_ID", "123", "123"},
        {"SLURM_JOBID", "124", "124"},
        {"PBS_JOBID", "12[3].server.example", "12_3_.server.example"},
        {"LSB_JOBID", "55", "55"},
        {"FLUX_JOB_ID",
         "\xc6\x92"
         "2Yu",
         "__2Yu"},
        {"OAR_JOB_ID", "9", "9"},
        {"COBALT_JOBID", "77", "77"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        forget_all();
        setenv(cases[i].name, cases[i].value, 1);
        check_job(cases[i].id, "");
    }
}
END_TEST

START_TEST(slurm_and_lsf_have_steps)
{
    forget_all();
    setenv("SLURM_JOB_ID", "1", 1);
    setenv("SLURM_STEP_ID", "0", 1);
    check_job("1", "0");
    forget_all();
    setenv("LSB_JOBID", "2", 1);
    setenv("LSB_JOBINDEX", "7", 1);
    check_job("2", "7");
}
END_TEST

START_TEST(a_plain_job_id_is_grid_engine_s_only_with_a_witness)
{
    forget_all();
    setenv("JOB_ID", "42", 1);
    check_job("", "");
    setenv("SGE_ROOT", "/opt/sge", 1);
    setenv("SGE_TASK_ID", "undefined", 1);
    check_job("42", "undefined");
}
END_TEST

START_TEST(an_identity_is_safe_and_fits_whatever_was_set)
{
    char longest[300], expected[JOB_ID_MAX];
    forget_all();
    memset(longest, 'x', sizeof(longest) - 1);
    longest[sizeof(longest) - 1] = '\0';
    memset(expected, 'x', sizeof(expected) - 1);
    expected[sizeof(expected) - 1] = '\0';
    setenv("SLURM_JOB_ID", longest, 1);
    setenv("SLURM_STEP_ID", "../a b\n$(c)", 1);
    check_job(expected, ".._a_b___c_");
}
END_TEST

int main(void)
{
    Suite *s = suite_create("job");
    TCase *c = tcase_create("job");
    tcase_add_test(c, outside_a_job_both_are_empty);
    tcase_add_test(c, each_batch_system_is_known);
    tcase_add_test(c, nodes_are_counted_from_their_number_or_from_processes_by_node);
    tcase_add_test(c, slurm_and_lsf_have_steps);
    tcase_add_test(c, a_plain_job_id_is_grid_engine_s_only_with_a_witness);
    tcase_add_test(c, an_identity_is_safe_and_fits_whatever_was_set);
    suite_add_tcase(s, c);
    return run_suite(s);
}
