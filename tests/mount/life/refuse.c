/*
 * Runs a command under a filter that refuses system calls: those later than Linux 4.18 (RHEL 8)
 * by ENOSYS, as that kernel does, or one by EPERM, as the filters of containers do with calls
 * that they don't know. What newer kernels changed in older calls, and FUSE itself, stays as it
 * is here.
 *
 * Usage: refuse CALL ERRNO COMMAND [ARGUMENT...]; CALL is a number or "new", ERRNO a number
 */
#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

/*
 * The last call of 4.18 on x86-64 is rseq. Since 5.1 new calls have the same numbers on all
 * architectures, from 424 on; between the two there are none.
 */
#define FIRST_NEW_CALL 335

int main(int argc, char **argv)
{
    if (argc < 4) {
        fputs("usage: refuse CALL ERRNO COMMAND [ARGUMENT...]\n", stderr);
        return 2;
    }
    int is_new = strcmp(argv[1], "new") == 0;
    uint32_t number = is_new ? FIRST_NEW_CALL : (uint32_t)atoi(argv[1]);
    uint16_t test = is_new ? BPF_JGE : BPF_JEQ;
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        {(uint16_t)(BPF_JMP | test | BPF_K), 0, 1, number},
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (uint32_t)atoi(argv[2])),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof(code) / sizeof(code[0]), code};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 ||
        prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) < 0) {
        perror("refuse: seccomp");
        return 77;
    }
    execvp(argv[3], argv + 3);
    perror(argv[3]);
    return 127;
}
