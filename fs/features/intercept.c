/*
 * The short circuit: processes with the preloaded library read files of the archive by
 * themselves (intercept.h). Here the mount tells them how: a thread hands out, to processes of
 * this user, where the bytes of files lie.
 *
 * Not where sums are compared as files are read, nor from network filesystems, nor from a copy
 * until all of it is there: a process can't do the daemon's work there for itself. Nor where
 * the daemon has to see all reads, to write them down or to follow an order.
 *
 * The words cost 8 bytes an entry, so they are written once the first process asks: by the
 * thread that hands out the table, between the questions of processes. A word that is not there
 * yet costs its reader a question to the mount.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "cleanup.h"
#include "core.h"
#include "feature_list.h"
#include "intercept.h"
#include "numbers.h"
#include "place.h"
#include "source_concat.h"
#include "thread.h"
#include "syscalls.h"

#define STACK_BYTES (256u << 10)
#define FILL_ENTRIES 2048u /* at a time */
#define BACKLOG 256
#define LOOK_MS 500
#define LOOK_MAX_MS 8000

struct intercept_server {
    struct session *session;
    uint64_t told_reads; /* that the counters were updated for */
    struct intercept_id id;
    struct intercept_offer offer;
    uint64_t
        starts[INTERCEPT_FILES_MAX]; /* of the files, in the bytes that the index tells of */
    uint64_t offsets[INTERCEPT_FILES_MAX]; /* in the files, of those bytes */
    int fds[1 + INTERCEPT_FILES_MAX];      /* of the offer; the first is the server's own */
    int socket, stop_fd;
    pthread_t thread;
    uint8_t *table;
    uint64_t table_bytes, words_at; /* where its words begin */
    bool is_asked;                  /* a process has asked */
    uint32_t filled;                /* entries */
};

/* ---- the files of the archive ---- */

/*
 * Regular files get a number; the mount answers for what lies elsewhere, and for an archive
 * that is not as it was when its index was read. A copy is nobody else's to change.
 */
static bool server_add_file(struct intercept_server *server, const struct source *member,
                            uint64_t start)
{
    struct intercept_offer *offer = &server->offer;
    struct stat st;
    int fd = source_local_fd(member, &server->offsets[offer->files]);

    if (fd < 0 || fstat(fd, &st) < 0 ||
        !(source_keeps(member) || source_was_changed(member) == 0))
        return false;
    server->starts[offer->files] = start;
    server->fds[1 + offer->files] = fd;
    offer->file[offer->files++] = (struct intercept_file){
        .dev = st.st_dev,
        .ino = st.st_ino,
        .size_bytes = (uint64_t)st.st_size,
        .ctime_sec = st.st_ctim.tv_sec,
        .ctime_nsec = (uint64_t)st.st_ctim.tv_nsec,
        .is_memory = source_is_memory(member),
    };
    return true;
}

static int server_add_files(struct intercept_server *server)
{
    const struct source *source = server->session->config.fileset->source, *member;
    server->offer.files = 0; /* an earlier attempt may have had no memory */
    bool is_one = source_member(source, 1) == NULL;

    if (!is_one && source_start(source) > 0)
        return -ENOTSUP; /* an archive inside a file in pieces */
    for (size_t i = 0; i < INTERCEPT_FILES_MAX && (member = source_member(source, i)); i++)
        if (!server_add_file(server, member, is_one ? 0 : source_concat_base(source, i)))
            break;
    return server->offer.files > 0 ? 0 : -ENOTSUP;
}

/* The word for a file of the archive in one piece; 0: it lies in none of the files. */
static uint64_t server_word(const struct intercept_server *server,
                            const struct index_file *file)
{
    const struct intercept_offer *offer = &server->offer;
    uint64_t number = offer->files;

    if (!S_ISREG(file->mode) || file->size_bytes == 0 || file->offset == INDEX_FILE_IN_PIECES)
        return 0;
    while (number > 0 && server->starts[number - 1] > file->offset)
        number--;
    if (number-- == 0)
        return 0;
    uint64_t offset = file->offset - server->starts[number] + server->offsets[number];
    uint64_t size = offer->file[number].size_bytes;
    if (offset > size || file->size_bytes > size - offset || offset > INTERCEPT_OFFSET_MAX)
        return 0;
    return INTERCEPT_IS_KNOWN | number << INTERCEPT_FILE_SHIFT | offset;
}

/* ---- the table ---- */

static struct intercept_head *server_head(const struct intercept_server *server)
{
    return (struct intercept_head *)(void *)server->table;
}

static int server_make_table(struct intercept_server *server)
{
    struct rlimit limit = {.rlim_cur = RLIM_INFINITY};
    auto_close int fd = syscall_memfd("onepot-io", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    getrlimit(RLIMIT_FSIZE, &limit); /* beyond it there is a signal */
    if (server->table_bytes > limit.rlim_cur)
        return -EFBIG;
    if (fd < 0)
        return fd;
    if (ftruncate(fd, (off_t)server->table_bytes) < 0 ||
        fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) < 0)
        return -errno;
    void *table = mmap(NULL, server->table_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (table == MAP_FAILED)
        return -errno;
    server->fds[0] = steal_fd(&fd);
    server->table = table;
    return 0;
}

/* Fill in some more words. False: all are there. */
static bool server_fill(struct intercept_server *server)
{
    struct index_file files[FILL_ENTRIES];
    uint64_t left = server->offer.entries - server->filled;

    if (!server->is_asked || left == 0)
        return false;
    uint32_t count = (uint32_t)min_u64(left, FILL_ENTRIES);
    _Atomic uint64_t *words = (void *)(server->table + server->words_at);
    if (index_files(server->session->index, server->filled, count, files) < 0)
        return false;
    for (uint32_t i = 0; i < count; i++)
        atomic_store_explicit(&words[server->filled + i], server_word(server, &files[i]),
                              memory_order_relaxed);
    server->filled += count;
    return true;
}

/* ---- processes that ask ---- */

/* Is it this user? All users without a number here share one, so that number proves nothing. */
static bool is_this_user(uid_t uid)
{
    return place_is_ours(&(const struct stat){.st_uid = uid});
}

static bool server_knows(int fd)
{
    struct ucred who;
    socklen_t len = sizeof(who);
    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &len) == 0 && is_this_user(who.uid);
}

/*
 * May this user have the answer to INTERCEPT_IOCTL? Its key is a secret of the mount's own
 * user, also where all may read. `uid` comes from a request. The kernel gives it as the one who
 * mounted numbers users: root of a container's own user namespace, too, is 0.
 */
bool intercept_tells(uint32_t uid)
{
    return uid == 0 || is_this_user(uid);
}

static void server_send(const struct intercept_server *server, int fd)
{
    struct iovec iov = {(void *)(uintptr_t)&server->offer, sizeof(server->offer)};
    size_t fds_bytes = (1 + server->offer.files) * sizeof(int);
    _Alignas(struct cmsghdr) char control[CMSG_SPACE(sizeof(server->fds))] = {0};
    struct msghdr message = {.msg_iov = &iov,
                             .msg_iovlen = 1,
                             .msg_control = control,
                             .msg_controllen = CMSG_SPACE(fds_bytes)};
    struct cmsghdr *cmsg = CMSG_FIRSTHDR(&message);

    cmsg->cmsg_level = SOL_SOCKET;
    cmsg->cmsg_type = SCM_RIGHTS;
    cmsg->cmsg_len = CMSG_LEN(fds_bytes);
    memcpy(CMSG_DATA(cmsg), server->fds, fds_bytes);
    sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT); /* else it asks the mount */
}

static void server_answer(struct intercept_server *server)
{
    auto_close int fd = accept4(server->socket, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

    if (fd < 0 || !server_knows(fd))
        return;
    if (!server->is_asked && server_add_files(server) == 0) {
        server->is_asked = true;
        server_fill(server); /* its reads may be over before the thread goes on */
    }
    if (server->is_asked)
        server_send(server, fd);
}

/*
 * Have processes read since the last time? Nobody tells, so it is looked at twice a second
 * while they do, and ever more seldom when they pause. Returns when to look again, in ms.
 */
static int server_look(struct intercept_server *server, int last_ms)
{
    const struct intercept_slot *slots = server_head(server)->slots;
    uint64_t reads = 0;

    if (!server->is_asked)
        return -1;
    for (unsigned i = 0; i < INTERCEPT_SLOTS; i++)
        reads += atomic_load_explicit(&slots[i].reads, memory_order_relaxed);
    if (reads == server->told_reads)
        return last_ms < LOOK_MS ? LOOK_MS : last_ms < LOOK_MAX_MS ? 2 * last_ms : last_ms;
    server->told_reads = reads;
    session_update_counters(server->session);
    return LOOK_MS;
}

/* Readers have the table mapped for as long as they live, and descriptors of the archive. */
static void server_take_leave(struct intercept_server *server)
{
    fallocate(server->fds[0], FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
              (off_t)server->words_at, (off_t)(server->table_bytes - server->words_at));
    atomic_store(&server_head(server)->has_ended, 1);
}

static void *server_run(void *arg)
{
    struct intercept_server *server = arg;
    struct pollfd p[] = {{.fd = server->socket, .events = POLLIN},
                         {.fd = server->stop_fd, .events = POLLIN}};
    int wait_ms = -1;

    while (!p[1].revents) {
        int n = poll(p, 2, wait_ms);
        if (n < 0 && errno != EINTR)
            break;
        if (n > 0 && p[0].revents)
            server_answer(server);
        wait_ms = server_fill(server) ? 0 : server_look(server, wait_ms);
    }
    server_take_leave(server);
    return NULL;
}

/* ---- start and end ---- */

/* Only those whom the mount tells the name can find it, and only this user gets an answer. */
static int server_listen(struct intercept_server *server)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct intercept_id *id = &server->id;
    uint64_t random[2];

    if (getrandom(random, sizeof(random), 0) != sizeof(random))
        return -EIO;
    id->key = server->offer.key = random[1];
    int len = snprintf(id->name, sizeof(id->name), "onepot-io-%d-%016" PRIx64, (int)getpid(),
                       random[0]);
    memcpy(address.sun_path + 1, id->name, (size_t)len);
    server->socket = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    socklen_t bytes = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)len);
    return server->socket < 0 ||
                   bind(server->socket, (const struct sockaddr *)&address, bytes) < 0 ||
                   listen(server->socket, BACKLOG) < 0
               ? -errno
               : 0;
}

static int server_start(struct intercept_server *server)
{
    int r = server_listen(server);
    if (r < 0)
        return r;
    server->stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (server->stop_fd < 0)
        return -errno;
    return thread_start(&server->thread, STACK_BYTES, server_run, server);
}

/* The id as LAYER_VARIABLE has it (preload.h). */
static void server_note_id(const struct intercept_server *server)
{
    const struct intercept_id *id = &server->id;
    struct counters *c = server->session->config.counters;

    snprintf(c->direct_id, sizeof(c->direct_id), "%" PRIi64 " %ld %" PRIu64 " %s",
             (int64_t)id->made.tv_sec, id->made.tv_nsec, id->key, id->name);
    atomic_store(&c->direct_is_offered, true);
}

static void intercept_free(void *state)
{
    struct intercept_server *server = state;

    if (server->table)
        munmap(server->table, server->table_bytes);
    cleanup_closep(&server->fds[0]);
    cleanup_closep(&server->socket);
    cleanup_closep(&server->stop_fd);
    free(server);
}

/* Processes may read for themselves, at least once a copy is complete. */
static int intercept_start(struct session *s, void **ret_state)
{
    const struct session_config *config = &s->config;
    uint64_t entries = index_info(s->index)->entries;

    if (config->verify || config->recorder || config->order ||
        !(config->stage || source_is_local(config->fileset->source)))
        return 0;
    struct intercept_server *server = calloc(1, sizeof(*server));
    if (!server)
        return 0; /* the mount works without */
    server->session = s;
    server->fds[0] = server->socket = server->stop_fd = -1;
    server->id = (struct intercept_id){.magic = INTERCEPT_MAGIC, .made = s->made};
    server->offer = (struct intercept_offer){.magic = INTERCEPT_MAGIC, .entries = entries};
    server->words_at = INTERCEPT_HEAD_BYTES + intercept_marks_bytes(entries);
    server->table_bytes = server->words_at + entries * sizeof(uint64_t);
    if (server_make_table(server) < 0 || server_start(server) < 0) {
        intercept_free(server);
        return 0;
    }
    server_note_id(server);
    s->file_marks = (void *)(server->table + INTERCEPT_HEAD_BYTES);
    *ret_state = server;
    return 0;
}

/* ---- the feature ---- */

/*
 * Add up in the counters what processes have counted, and tell them whether names are listed.
 */
static void intercept_update(void *state)
{
    const struct intercept_server *server = state;
    struct counters *c = server->session->config.counters;
    struct intercept_head *head = server_head(server);
    struct intercept_slot sums = {0};

    for (unsigned i = 0; i < INTERCEPT_SLOTS; i++) {
        const struct intercept_slot *slot = &head->slots[i];
        sums.starts += atomic_load_explicit(&slot->starts, memory_order_relaxed);
        sums.files += atomic_load_explicit(&slot->files, memory_order_relaxed);
        sums.foreseen += atomic_load_explicit(&slot->foreseen, memory_order_relaxed);
        sums.reads += atomic_load_explicit(&slot->reads, memory_order_relaxed);
        sums.bytes += atomic_load_explicit(&slot->bytes, memory_order_relaxed);
        sums.waited_ns += atomic_load_explicit(&slot->waited_ns, memory_order_relaxed);
        uint64_t last = atomic_load_explicit(&slot->last_read_ns, memory_order_relaxed);
        sums.last_read_ns = max_u64(sums.last_read_ns, last);
    }
    atomic_store(&c->direct_starts, sums.starts);
    atomic_store(&c->direct_files, sums.files);
    atomic_store(&c->direct_foreseen, sums.foreseen);
    atomic_store(&c->direct_reads, sums.reads);
    atomic_store(&c->direct_bytes, sums.bytes);
    atomic_store(&c->direct_ns, sums.waited_ns);
    atomic_store(&c->direct_last_ns, sums.last_read_ns);
    atomic_store(&c->direct_refused, atomic_load(&head->has_refused));
    atomic_store(&head->lists_ahead, atomic_load(&server->session->lists_ahead));
}

static bool intercept_answer(void *state, struct request *rq)
{
    const struct session *s = rq->worker->session;
    const struct fuse_ioctl_in *arg = rq->arg;
    struct {
        struct fuse_ioctl_out out;
        struct intercept_id id;
    } answer = {0};

    if (rq->header->opcode != FUSE_IOCTL || rq->arg_len < sizeof(*arg) ||
        arg->cmd != INTERCEPT_IOCTL || arg->out_size < sizeof(answer.id) ||
        !intercept_tells(rq->header->uid) || !source_is_local(s->config.fileset->source) ||
        atomic_load_explicit(&s->distrusted, memory_order_relaxed))
        return false;
    answer.id = ((const struct intercept_server *)state)->id;
    reply_bytes(rq, &answer, sizeof(answer));
    return true;
}

static void intercept_end(void *state)
{
    eventfd_write(((struct intercept_server *)state)->stop_fd, 1);
}

static int intercept_join(void *state, const struct timespec *until)
{
    return thread_join_until(((struct intercept_server *)state)->thread, until);
}

const struct feature intercept_feature = {
    .start = intercept_start,
    .serve = intercept_update,
    .answer = intercept_answer,
    .update_counters = intercept_update,
    .end = intercept_end,
    .join = intercept_join,
    .free = intercept_free,
};
