/* fake_nccl_move.c: collectives, and groups of sends and receives, as host functions of a stream. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fake_nccl_state.h"

EXPORT int ncclAllGather(const void *send, void *recv, size_t count, int type,
                         struct ncclComm *comm, void *stream);
EXPORT int ncclBroadcast(const void *send, void *recv, size_t count, int type, int root,
                         struct ncclComm *comm, void *stream);
EXPORT int ncclReduceScatter(const void *send, void *recv, size_t count, int type, int op,
                             struct ncclComm *comm, void *stream);
EXPORT int ncclSend(const void *send, size_t count, int type, int peer, struct ncclComm *comm,
                    void *stream);
EXPORT int ncclRecv(void *recv, size_t count, int type, int peer, struct ncclComm *comm,
                    void *stream);
EXPORT int ncclGroupStart(void);
EXPORT int ncclGroupEnd(void);

/* The group that this thread has begun. */
static _Thread_local struct {
    int depth, failed; /* failed: with this result; nothing of the group is done */
    struct job *job;
    CUstream stream;
} group;

static size_t size_of(int type)
{
    return type == NCCL_INT8 ? 1 : type == NCCL_FLOAT32 ? 4 : 2;
}

int fake_nccl_check(const char *call, const void *p, uint64_t bytes)
{
    unsigned type = CU_MEMORYTYPE_DEVICE; /* believed, where the question fails on demand */
    CUresult res;

    for (int end = 0; end < 2; end++) {
        CUdeviceptr at = (uintptr_t)p + (end ? bytes - 1 : 0);

        res = cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, at);
        if (res == CUDA_ERROR_INVALID_VALUE || type != CU_MEMORYTYPE_DEVICE)
            return fake_nccl_violation(INVALID_ARGUMENT, "%s: %p is no device memory", call, p);
    }
    return NCCL_SUCCESS;
}

/* ---- jobs ---- */

static struct job *make_job(struct ncclComm *comm)
{
    struct job *j = calloc(1, sizeof *j);

    j->comm = comm;
    fake_nccl_retain(comm);
    return j;
}

static void end_job(struct job *j)
{
    fake_nccl_release(j->comm);
    free(j->part);
    free(j->arrived);
    free(j);
}

static void add(struct job *j, int sends, const void *at, uint64_t bytes, int peer)
{
    if (j->nparts == j->room) {
        j->room = j->room ? 2 * j->room : 16;
        j->part = realloc(j->part, (size_t)j->room * sizeof *j->part);
    }
    j->part[j->nparts++] = (struct part){(char *)(uintptr_t)at, bytes, peer, sends};
}

/* A box full, if it is this part's turn: parts with one peer go in order. */
static int move(struct job *j, struct part *p)
{
    struct world *w = j->comm->world;
    struct box *b = p->sends ? &w->box[j->comm->rank][p->peer] : &w->box[p->peer][j->comm->rank];
    uint64_t n = p->left < BOX_BYTES ? p->left : BOX_BYTES;

    if (atomic_load(&b->full) == p->sends)
        return 0;
    if (p->sends) {
        memcpy(b->data, p->at, n);
        b->bytes = n;
    } else {
        if (b->bytes != n)
            (void)fake_nccl_violation(0, "rank %d sent %d %llu bytes, %llu were expected", p->peer,
                                      j->comm->rank, (unsigned long long)b->bytes,
                                      (unsigned long long)n);
        memcpy(p->at, b->data, n);
    }
    atomic_store(&b->full, p->sends);
    p->at += n;
    p->left -= n;
    return 1;
}

/* Whether an earlier part of the job stands before this one. */
static int must_wait(const struct job *j, const struct part *p)
{
    for (const struct part *q = j->part; q < p; q++)
        if (q->left && q->peer == p->peer && q->sends == p->sends)
            return 1;
    return 0;
}

static void move_all(struct job *j)
{
    int open = 1, moved;

    while (open && !atomic_load(&j->comm->aborted)) {
        open = moved = 0;
        for (int i = 0; i < j->nparts; i++) {
            struct part *p = &j->part[i];

            if (p->left && !must_wait(j, p))
                moved += move(j, p);
            open += p->left > 0;
        }
        if (!moved)
            usleep(50);
    }
}

/* ---- reductions ---- */

static float widen(const char *at, int type, uint64_t i)
{
    uint32_t bits;
    float f;

    if (type == NCCL_FLOAT32)
        return ((const float *)(const void *)at)[i];
    bits = (uint32_t)((const uint16_t *)(const void *)at)[i] << 16;
    memcpy(&f, &bits, sizeof f);
    return f;
}

/* BF16, half to even. */
static void narrow(char *at, int type, uint64_t i, float f)
{
    uint32_t bits;

    if (type == NCCL_FLOAT32) {
        ((float *)(void *)at)[i] = f;
        return;
    }
    memcpy(&bits, &f, sizeof bits);
    ((uint16_t *)(void *)at)[i] = (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* From the last rank to the first, rounded each time: a library's own choice. */
static void reduce(struct job *j)
{
    uint64_t each = j->n * size_of(j->type);

    for (uint64_t i = 0; i < j->n; i++) {
        int last = j->comm->nranks - 1;

        narrow(j->dst, j->type, i, widen(j->arrived + (uint64_t)last * each, j->type, i));
        for (int r = last; r-- > 0;)
            narrow(j->dst, j->type, i,
                   widen(j->dst, j->type, i) + widen(j->arrived + (uint64_t)r * each, j->type, i));
    }
}

static void run_job(void *user)
{
    struct job *j = user;

    move_all(j);
    if (j->dst && !atomic_load(&j->comm->aborted))
        reduce(j);
    end_job(j);
}

static int launch(struct job *j, CUstream stream)
{
    int in_progress = !j->comm->blocking;

    atomic_store(&j->comm->pending, in_progress);
    if (cuLaunchHostFunc(stream, run_job, j) != CUDA_SUCCESS) {
        end_job(j);
        return 1;
    }
    return in_progress ? NCCL_IN_PROGRESS : NCCL_SUCCESS;
}

/* ---- the calls ---- */

/* First of every call that moves. */
static int begin(const char *call, struct ncclComm *comm, const void *send, uint64_t send_bytes,
                 const void *recv, uint64_t recv_bytes)
{
    int result = fake_nccl_enter(call);

    if (result || (result = fake_nccl_check_comm(call, comm)))
        return result;
    if (send && (result = fake_nccl_check(call, send, send_bytes)))
        return result;
    return recv ? fake_nccl_check(call, recv, recv_bytes) : NCCL_SUCCESS;
}

int ncclAllGather(const void *send, void *recv, size_t count, int type, struct ncclComm *comm,
                  void *stream)
{
    uint64_t bytes = count * size_of(type);
    int result = begin("ncclAllGather", comm, send, bytes, recv,
                       bytes * (uint64_t)(comm ? comm->nranks : 1));
    struct job *j;

    if (result)
        return result;
    j = make_job(comm);
    for (int r = 0; r < comm->nranks; r++) {
        if (r == comm->rank && (const char *)send == (char *)recv + (uint64_t)r * bytes)
            continue;
        add(j, 1, send, bytes, r);
        add(j, 0, (char *)recv + (uint64_t)r * bytes, bytes, r);
    }
    return launch(j, stream);
}

int ncclBroadcast(const void *send, void *recv, size_t count, int type, int root,
                  struct ncclComm *comm, void *stream)
{
    uint64_t bytes = count * size_of(type);
    int result = begin("ncclBroadcast", comm, send, bytes, recv, bytes);
    struct job *j;

    if (result)
        return result;
    j = make_job(comm);
    for (int r = 0; r < comm->nranks; r++)
        if (comm->rank == root && r != root)
            add(j, 1, send, bytes, r);
    if (comm->rank != root)
        add(j, 0, recv, bytes, root);
    return launch(j, stream);
}

int ncclReduceScatter(const void *send, void *recv, size_t count, int type, int op,
                      struct ncclComm *comm, void *stream)
{
    uint64_t bytes = count * size_of(type);
    int result = begin("ncclReduceScatter", comm, send, bytes * (uint64_t)(comm ? comm->nranks : 1),
                       recv, bytes);
    struct job *j;

    if (result)
        return result;
    if (op != NCCL_SUM || type == NCCL_INT8)
        return fake_nccl_violation(INVALID_ARGUMENT, "ncclReduceScatter: op %d, type %d", op, type);
    j = make_job(comm);
    j->dst = recv;
    j->n = count;
    j->type = type;
    j->arrived = malloc(bytes * (uint64_t)comm->nranks);
    for (int r = 0; r < comm->nranks; r++) {
        add(j, 1, (const char *)send + (uint64_t)r * bytes, bytes, r);
        add(j, 0, j->arrived + (uint64_t)r * bytes, bytes, r);
    }
    return launch(j, stream);
}

static int add_to_group(const char *call, int sends, const void *at, uint64_t bytes, int peer,
                        struct ncclComm *comm, void *stream)
{
    int result = begin(call, comm, sends ? at : NULL, bytes, sends ? NULL : at, bytes);

    if (result)
        return group.failed = result;
    if (!group.depth || peer < 0 || peer >= comm->nranks ||
        (group.job && (group.job->comm != comm || group.stream != stream)))
        return fake_nccl_violation(INVALID_USAGE, "%s: outside a group, or of another one", call);
    if (!group.job)
        group.job = make_job(comm);
    group.stream = stream;
    add(group.job, sends, at, bytes, peer);
    return NCCL_SUCCESS;
}

int ncclSend(const void *send, size_t count, int type, int peer, struct ncclComm *comm,
             void *stream)
{
    return add_to_group("ncclSend", 1, send, count * size_of(type), peer, comm, stream);
}

int ncclRecv(void *recv, size_t count, int type, int peer, struct ncclComm *comm, void *stream)
{
    return add_to_group("ncclRecv", 0, recv, count * size_of(type), peer, comm, stream);
}

int ncclGroupStart(void)
{
    int result = fake_nccl_enter("ncclGroupStart");

    group.depth += result == NCCL_SUCCESS;
    return result;
}

int ncclGroupEnd(void)
{
    struct job *j = group.job;
    int result = fake_nccl_enter("ncclGroupEnd");

    if (!group.depth)
        return fake_nccl_violation(INVALID_USAGE, "ncclGroupEnd without a beginning");
    if (--group.depth)
        return result;
    result = result ? result : group.failed;
    group.job = NULL;
    group.failed = 0;
    if (j && result == NCCL_SUCCESS)
        return launch(j, group.stream);
    if (j)
        end_job(j);
    return result;
}
