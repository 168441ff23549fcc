/*
 * The subcommands, one file each. argv[0] is the command's own name, and getopt is ready to
 * start (optind 1). Each returns the program's exit status.
 *
 * Without FUSE (HAVE_FUSE) mount, umount, run and clean are not built; main.c then answers for
 * them.
 */
#ifndef ONEPOT_COMMANDS_H
#define ONEPOT_COMMANDS_H

int command_cat(int argc, char **argv);
int command_clean(int argc, char **argv);
int command_doctor(int argc, char **argv);
int command_extract(int argc, char **argv);
int command_index(int argc, char **argv);
int command_info(int argc, char **argv);
int command_ls(int argc, char **argv);
int command_mount(int argc, char **argv);
int command_order(int argc, char **argv);
int command_pack(int argc, char **argv);
int command_run(int argc, char **argv);
int command_stage(int argc, char **argv);
int command_stat(int argc, char **argv);
int command_top(int argc, char **argv);
int command_umount(int argc, char **argv);
int command_unstage(int argc, char **argv);
int command_verify(int argc, char **argv);

#endif
