/* fake_nccl_comm.c: communicators: ids, meeting, splitting, errors on demand, the end. */
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "fake_nccl_state.h"

static struct {
    pthread_mutex_t lock;
    int64_t live, violations, fail_in;
    int fail_result, failed, broken, version;
} fake_nccl = {.lock = PTHREAD_MUTEX_INITIALIZER, .version = 22800};

EXPORT fake_nccl_break_fn fake_nccl_break;
EXPORT fake_nccl_version_fn fake_nccl_version;
EXPORT fake_nccl_fail_nth_fn fake_nccl_fail_nth;
EXPORT fake_nccl_failed_fn fake_nccl_failed;
EXPORT fake_nccl_live_fn fake_nccl_live;
EXPORT fake_nccl_violations_fn fake_nccl_violations;
EXPORT int ncclGetVersion(int *version);
EXPORT const char *ncclGetErrorString(int result);
EXPORT const char *ncclGetLastError(struct ncclComm *comm);
EXPORT int ncclGetUniqueId(struct nccl_id *id);
EXPORT int ncclCommInitRankConfig(struct ncclComm **out, int nranks, struct nccl_id id, int rank,
                                  struct nccl_config *config);
EXPORT int ncclCommSplit(struct ncclComm *comm, int color, int key, struct ncclComm **out,
                         struct nccl_config *config);
EXPORT int ncclCommFinalize(struct ncclComm *comm);
EXPORT int ncclCommDestroy(struct ncclComm *comm);
EXPORT int ncclCommAbort(struct ncclComm *comm);
EXPORT int ncclCommGetAsyncError(struct ncclComm *comm, int *result);
EXPORT int ncclCommCount(const struct ncclComm *comm, int *count);
EXPORT int ncclCommCuDevice(const struct ncclComm *comm, int *device);
EXPORT int ncclCommUserRank(const struct ncclComm *comm, int *rank);

/* ---- what tests ask for ---- */

void fake_nccl_break(int result)
{
    pthread_mutex_lock(&fake_nccl.lock);
    fake_nccl.broken = result;
    pthread_mutex_unlock(&fake_nccl.lock);
}

void fake_nccl_version(int version)
{
    fake_nccl.version = version;
}

void fake_nccl_fail_nth(int64_t n, int result)
{
    pthread_mutex_lock(&fake_nccl.lock);
    fake_nccl.fail_in = n;
    fake_nccl.fail_result = result;
    fake_nccl.failed = 0;
    pthread_mutex_unlock(&fake_nccl.lock);
}

int fake_nccl_failed(void)
{
    return fake_nccl.failed;
}

int64_t fake_nccl_live(void)
{
    return fake_nccl.live;
}

int64_t fake_nccl_violations(void)
{
    return fake_nccl.violations;
}

int fake_nccl_enter(const char *call)
{
    int result = NCCL_SUCCESS;

    pthread_mutex_lock(&fake_nccl.lock);
    if (fake_nccl.fail_in > 0 && --fake_nccl.fail_in == 0) {
        fake_nccl.failed = 1;
        result = fake_nccl.fail_result;
    }
    pthread_mutex_unlock(&fake_nccl.lock);
    return result;
}

int fake_nccl_violation(int result, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    fprintf(stderr, "fake_nccl: ");
    vfprintf(stderr, fmt, ap);
    fprintf(stderr, "\n");
    va_end(ap);
    pthread_mutex_lock(&fake_nccl.lock);
    fake_nccl.violations++;
    pthread_mutex_unlock(&fake_nccl.lock);
    return result;
}

void fake_nccl_count(int alive)
{
    pthread_mutex_lock(&fake_nccl.lock);
    fake_nccl.live += alive;
    pthread_mutex_unlock(&fake_nccl.lock);
}

__attribute__((destructor)) static void report(void)
{
    if (fake_nccl.live)
        fprintf(stderr, "fake_nccl: %lld communicators are alive at the end\n",
                (long long)fake_nccl.live);
    if (fake_nccl.live || fake_nccl.violations)
        _exit(99);
}

/* ---- places ---- */

static int make_place(int *fd)
{
    *fd = memfd_create("fake-nccl", MFD_CLOEXEC);
    return *fd >= 0 && ftruncate(*fd, sizeof(struct world)) == 0 ? 0 : 2;
}

static struct world *map_place(int pid, int fd)
{
    char path[64];
    void *p;
    int own;

    snprintf(path, sizeof path, "/proc/%d/fd/%d", pid, fd);
    own = open(path, O_RDWR | O_CLOEXEC);
    if (own < 0)
        return NULL;
    p = mmap(NULL, sizeof(struct world), PROT_READ | PROT_WRITE, MAP_SHARED, own, 0);
    close(own);
    return p == MAP_FAILED ? NULL : p;
}

/* ---- communicators ---- */

static int current_device(int *device)
{
    CUcontext ctx = NULL;

    if (cuCtxGetCurrent(&ctx) != CUDA_SUCCESS)
        return 1;
    if (!ctx)
        return fake_nccl_violation(INVALID_USAGE, "no context is current");
    *device = ctx->device;
    return NCCL_SUCCESS;
}

static struct ncclComm *make_comm(struct world *world, int rank, int nranks, int device,
                                  int blocking, int fd)
{
    struct ncclComm *c = calloc(1, sizeof *c);

    *c = (struct ncclComm){.world = world,
                           .rank = rank,
                           .nranks = nranks,
                           .device = device,
                           .blocking = blocking,
                           .refs = 1,
                           .fd = fd};
    fake_nccl_count(1);
    atomic_fetch_add(&world->ncame, 1);
    return c;
}

void fake_nccl_retain(struct ncclComm *comm)
{
    atomic_fetch_add(&comm->refs, 1);
}

void fake_nccl_release(struct ncclComm *comm)
{
    if (atomic_fetch_sub(&comm->refs, 1) > 1)
        return;
    munmap(comm->world, sizeof *comm->world);
    if (comm->fd >= 0)
        close(comm->fd);
    free(comm);
    fake_nccl_count(-1);
}

static int all_came(const struct ncclComm *c)
{
    return atomic_load(&c->world->ncame) >= c->nranks;
}

int fake_nccl_check_comm(const char *call, struct ncclComm *comm)
{
    if (!comm)
        return fake_nccl_violation(INVALID_ARGUMENT, "%s: no communicator", call);
    if (comm->finalized || !all_came(comm) || comm->split_out || comm->pending)
        return fake_nccl_violation(INVALID_USAGE, "%s: the communicator is %s", call,
                                   comm->finalized ? "finalised" : "in progress");
    return NCCL_SUCCESS;
}

static int check_config(const struct nccl_config *config)
{
    if (config && (config->size < 40 || config->magic != 0xcafebeef || config->version < 21400))
        return fake_nccl_violation(INVALID_ARGUMENT, "a configuration that is none");
    return NCCL_SUCCESS;
}

static void nap(void)
{
    usleep(100);
}

int ncclGetVersion(int *version)
{
    int result = fake_nccl_enter("ncclGetVersion");

    *version = fake_nccl.version;
    return result;
}

const char *ncclGetErrorString(int result)
{
    return result == 6 ? "remote process exited or there was a network error" : "fake error";
}

const char *ncclGetLastError(struct ncclComm *comm)
{
    return "told by the fake library";
}

int ncclGetUniqueId(struct nccl_id *id)
{
    int fd, result = fake_nccl_enter("ncclGetUniqueId");

    if (result == NCCL_SUCCESS)
        result = make_place(&fd);
    if (result == NCCL_SUCCESS) {
        memset(id, 0, sizeof *id);
        snprintf(id->internal, sizeof id->internal, "%d %d", (int)getpid(), fd);
    }
    return result;
}

int ncclCommInitRankConfig(struct ncclComm **out, int nranks, struct nccl_id id, int rank,
                           struct nccl_config *config)
{
    int pid, fd, device = 0, result = fake_nccl_enter("ncclCommInitRankConfig");
    struct world *world;

    if (result || (result = check_config(config)) || (result = current_device(&device)))
        return result;
    if (rank < 0 || rank >= nranks || nranks > MOST_RANKS ||
        sscanf(id.internal, "%d %d", &pid, &fd) != 2 || !(world = map_place(pid, fd)))
        return fake_nccl_violation(INVALID_ARGUMENT, "rank %d of %d, id %.20s", rank, nranks,
                                   id.internal);
    *out = make_comm(world, rank, nranks, device, !config || config->blocking != 0,
                     pid == (int)getpid() ? fd : -1);
    while ((*out)->blocking && !all_came(*out))
        nap();
    return (*out)->blocking ? NCCL_SUCCESS : NCCL_IN_PROGRESS;
}

/* The split's place is made by rank 0; who looks for it too early looks again. */
static int go_on_splitting(struct ncclComm *c)
{
    struct place *place = &c->world->child[c->nsplits];
    struct world *world;

    if (!atomic_load(&place->fd))
        return NCCL_IN_PROGRESS;
    world = map_place(atomic_load(&place->pid), atomic_load(&place->fd));
    if (!world)
        return 2;
    *c->split_out = make_comm(world, c->rank, c->nranks, c->device, c->split_blocking,
                              c->rank == 0 ? atomic_load(&place->fd) : -1);
    c->split_out = NULL;
    c->nsplits++;
    return NCCL_SUCCESS;
}

int ncclCommSplit(struct ncclComm *comm, int color, int key, struct ncclComm **out,
                  struct nccl_config *config)
{
    int fd, result = fake_nccl_enter("ncclCommSplit");

    if (result || (result = check_config(config)) ||
        (result = fake_nccl_check_comm("ncclCommSplit", comm)))
        return result;
    if (color != 0 || key != comm->rank || comm->nsplits == MOST_SPLITS)
        return fake_nccl_violation(INVALID_ARGUMENT, "split: color %d, key %d", color, key);
    *out = NULL;
    comm->split_out = out;
    comm->split_blocking = config ? config->blocking != 0 : comm->blocking;
    if (comm->rank == 0) {
        if ((result = make_place(&fd)))
            return result;
        atomic_store(&comm->world->child[comm->nsplits].pid, (int)getpid());
        atomic_store(&comm->world->child[comm->nsplits].fd, fd);
    }
    while (comm->blocking && (result = go_on_splitting(comm)) == NCCL_IN_PROGRESS)
        nap();
    return comm->blocking ? result : NCCL_IN_PROGRESS;
}

int ncclCommGetAsyncError(struct ncclComm *comm, int *result)
{
    int own = fake_nccl_enter("ncclCommGetAsyncError");

    if (own)
        return own;
    if (!comm)
        return fake_nccl_violation(INVALID_ARGUMENT, "ncclCommGetAsyncError: no communicator");
    *result = NCCL_SUCCESS;
    if (!all_came(comm) || atomic_exchange(&comm->pending, 0) ||
        (comm->finalized && atomic_load(&comm->refs) > 1))
        *result = NCCL_IN_PROGRESS;
    else if (comm->split_out)
        *result = go_on_splitting(comm);
    if (fake_nccl.broken)
        *result = fake_nccl.broken;
    return NCCL_SUCCESS;
}

int ncclCommFinalize(struct ncclComm *comm)
{
    int result = fake_nccl_enter("ncclCommFinalize");

    if (result == NCCL_SUCCESS)
        result = fake_nccl_check_comm("ncclCommFinalize", comm);
    if (result == NCCL_SUCCESS)
        comm->finalized = 1;
    return result ? result : NCCL_IN_PROGRESS;
}

int ncclCommDestroy(struct ncclComm *comm)
{
    if (!comm->finalized || atomic_load(&comm->refs) > 1)
        return fake_nccl_violation(INVALID_USAGE, "destroyed while calls are under way");
    fake_nccl_release(comm);
    return NCCL_SUCCESS;
}

/* Never refuses: what it does must be done. */
int ncclCommAbort(struct ncclComm *comm)
{
    atomic_store(&comm->aborted, 1);
    fake_nccl_release(comm);
    return NCCL_SUCCESS;
}

int ncclCommCount(const struct ncclComm *comm, int *count)
{
    *count = comm->nranks;
    return fake_nccl_enter("ncclCommCount");
}

int ncclCommCuDevice(const struct ncclComm *comm, int *device)
{
    *device = comm->device;
    return fake_nccl_enter("ncclCommCuDevice");
}

int ncclCommUserRank(const struct ncclComm *comm, int *rank)
{
    *rank = comm->rank;
    return fake_nccl_enter("ncclCommUserRank");
}
