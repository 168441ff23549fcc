/*
 * A message between two processes of the mounting, with a descriptor or without. One that
 * arrives is closed when a program is executed.
 */
#ifndef ONEPOT_MESSAGE_H
#define ONEPOT_MESSAGE_H

#include <errno.h>
#include <string.h>
#include <sys/socket.h>

union message_control {
    struct cmsghdr align;
    char buf[CMSG_SPACE(sizeof(int))];
};

/* `fd` is -1 for none. 0 or -errno. */
static inline int message_send(int sock, void *data, size_t size, int fd)
{
    union message_control control = {0};
    struct iovec iov = {.iov_base = data, .iov_len = size};
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};

    if (fd >= 0) {
        msg.msg_control = control.buf;
        msg.msg_controllen = sizeof(control.buf);
        struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(c), &fd, sizeof(int));
    }
    return sendmsg(sock, &msg, MSG_NOSIGNAL) < 0 ? -errno : 0;
}

/* 0, and *ret_fd is -1 if no descriptor came; -EPIPE: the message is shorter. */
static inline int message_receive(int sock, void *data, size_t size, int flags, int *ret_fd)
{
    union message_control control;
    struct iovec iov = {.iov_base = data, .iov_len = size};
    struct msghdr msg = {.msg_iov = &iov,
                         .msg_iovlen = 1,
                         .msg_control = control.buf,
                         .msg_controllen = sizeof(control.buf)};
    ssize_t n = recvmsg(sock, &msg, MSG_CMSG_CLOEXEC | flags);

    if (n != (ssize_t)size)
        return n < 0 ? -errno : -EPIPE;
    struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
    *ret_fd = -1;
    if (c && c->cmsg_type == SCM_RIGHTS && c->cmsg_len == CMSG_LEN(sizeof(int)))
        memcpy(ret_fd, CMSG_DATA(c), sizeof(int));
    return 0;
}

#endif
