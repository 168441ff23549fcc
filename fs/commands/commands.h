/*
 * The subcommands, one file each.
 *
 * fs/meson.build may leave some out: without FUSE there are no mounts, and without the loader
 * there is no order. cli_run_command then answers for them.
 */
#ifndef ONEPOT_COMMANDS_H
#define ONEPOT_COMMANDS_H

#include <stdbool.h>

#include "cli.h"

/* The version; as JSON also formats, codecs and commands. */
void command_print_version(bool as_json);

extern const struct cli_command command_cat;
extern const struct cli_command command_clean;
extern const struct cli_command command_completions;
extern const struct cli_command command_doctor;
extern const struct cli_command command_extract;
extern const struct cli_command command_help;
extern const struct cli_command command_index;
extern const struct cli_command command_info;
extern const struct cli_command command_licences;
extern const struct cli_command command_ls;
extern const struct cli_command command_mount;
extern const struct cli_command command_mpi;
extern const struct cli_command command_order;
extern const struct cli_command command_pack;
extern const struct cli_command command_run;
extern const struct cli_command command_self_test;
extern const struct cli_command command_squashfuse;
extern const struct cli_command command_stage;
extern const struct cli_command command_stat;
extern const struct cli_command command_top;
extern const struct cli_command command_umount;
extern const struct cli_command command_unstage;
extern const struct cli_command command_verify;

/* The steps of self-test that mount, as findings of the doctor. */
struct findings;
void self_test_mounting(struct findings *findings);

#endif
