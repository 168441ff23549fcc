/*
 * onepot mpi: print the source of onepot-mpi (fs/mpi), which has to be compiled with the MPI of
 * the site, whatever that is.
 */
#include <stdio.h>
#include <unistd.h>

#include "carried.h"
#include "cli.h"
#include "commands.h"

static int mpi_main(int argc, char **argv);

const struct cli_command command_mpi = {
    "mpi", mpi_main, "print onepot-mpi, by which nodes stage together, to compile it", "",
    "Print the source of onepot-mpi, by which the nodes of an MPI job stage an archive "
    "together;\n"
    "compile it with the MPI of this site: onepot mpi | mpicc -O2 -x c -o onepot-mpi -\n"};

static int mpi_main(int argc, char **argv)
{
    const struct cli_option options[] = {{NULL}};
    int status = optind < argc && argv[optind][0] != '-'
                     ? CLI_GO_ON
                     : cli_parse(&command_mpi, options, argc, argv);
    if (status != CLI_GO_ON)
        return status;
    if (optind < argc || isatty(STDOUT_FILENO)) {
        cli_failf(NULL, "onepot-mpi has to be compiled with the MPI of this site: "
                        "onepot mpi | mpicc -O2 -x c -o onepot-mpi -");
        return CLI_USAGE;
    }
    fputs(carried_mpi, stdout);
    return CLI_OK;
}
