/*
 * The subcommands, one file each. argv[0] is the command's own name, and getopt is ready to
 * start (optind 1). Each returns the program's exit status.
 *
 * fs/meson.build may leave some out: without FUSE there are no mounts, and without the loader
 * there is no order. cli_run_command then answers for them.
 */
#ifndef ONEPOT_COMMANDS_H
#define ONEPOT_COMMANDS_H

#include <stdbool.h>
#include <stdint.h>

/* The version; as JSON also formats, codecs and commands. */
void command_print_version(bool as_json);

int command_cat(int argc, char **argv);
int command_clean(int argc, char **argv);
int command_completions(int argc, char **argv);
int command_doctor(int argc, char **argv);
int command_extract(int argc, char **argv);
int command_help(int argc, char **argv);
int command_index(int argc, char **argv);
int command_info(int argc, char **argv);
int command_licences(int argc, char **argv);
int command_ls(int argc, char **argv);
int command_mount(int argc, char **argv);
int command_mpi(int argc, char **argv);
int command_order(int argc, char **argv);
int command_pack(int argc, char **argv);
int command_run(int argc, char **argv);
int command_self_test(int argc, char **argv);
int command_squashfuse(int argc, char **argv);
int command_stage(int argc, char **argv);
int command_stat(int argc, char **argv);
int command_top(int argc, char **argv);
int command_umount(int argc, char **argv);
int command_unstage(int argc, char **argv);
int command_verify(int argc, char **argv);

/* The steps of self-test that mount, as findings of the doctor. */
struct findings;
void self_test_mounting(struct findings *findings);

#endif
