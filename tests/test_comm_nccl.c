/*
 * The communicator over NCCL, over tests/fake_nccl and tests/fake_cuda: a process a rank, forked before
 * anything is opened in it.
 */
#include "nccl_ranks.h"

enum { NCCL_REMOTE_ERROR = 6, NCCL_SYSTEM_ERROR = 2 };

/* ---- right results ---- */

static unsigned char byte_of(int from, int to, uint64_t i)
{
    return (unsigned char)(i * 7 + i / 251 + (uint64_t)from * 31 + (uint64_t)to * 101 + 1);
}

static void fill(unsigned char *at, int from, int to, uint64_t bytes)
{
    for (uint64_t i = 0; i < bytes; i++)
        at[i] = byte_of(from, to, i);
}

static int same(const unsigned char *at, int from, int to, uint64_t bytes)
{
    for (uint64_t i = 0; i < bytes; i++)
        if (at[i] != byte_of(from, to, i))
            return 0;
    return 1;
}

static void gather(struct rank *r, uint64_t bytes, int in_place)
{
    uint64_t all = bytes * (uint64_t)r->nranks;
    unsigned char *host = malloc(all + 1), *full = memory(r, all), *shard = memory(r, bytes);
    unsigned char *own = in_place ? full + (uint64_t)r->rank * bytes : shard;

    fill(host, r->rank, 0, bytes);
    MUST(haul_device_copy_h2d(r->dev, own, host, bytes, r->stream) == 0);
    MUST(r->comm->ops->all_gather(r->comm, full, own, bytes, r->stream) == 0);
    MUST(haul_device_copy_d2h(r->dev, host, full, all, r->stream) == 0);
    MUST(haul_device_stream_sync(r->dev, r->stream) == 0);
    MUST(hl_comm_check(r->comm) == 0);
    for (int from = 0; from < r->nranks; from++)
        MUST(same(host + (uint64_t)from * bytes, from, 0, bytes));
    haul_device_free(r->dev, full);
    haul_device_free(r->dev, shard);
    free(host);
}

static void to_all(struct rank *r, uint64_t bytes)
{
    uint64_t all = bytes * (uint64_t)r->nranks;
    unsigned char *host = malloc(all + 1), *recv = memory(r, all), *send = memory(r, all);

    for (int to = 0; to < r->nranks; to++)
        fill(host + (uint64_t)to * bytes, r->rank, to, bytes);
    MUST(haul_device_copy_h2d(r->dev, send, host, all, r->stream) == 0);
    MUST(r->comm->ops->all_to_all(r->comm, recv, send, bytes, r->stream) == 0);
    MUST(haul_device_copy_d2h(r->dev, host, recv, all, r->stream) == 0);
    MUST(haul_device_stream_sync(r->dev, r->stream) == 0);
    for (int from = 0; from < r->nranks; from++)
        MUST(same(host + (uint64_t)from * bytes, from, r->rank, bytes));
    haul_device_free(r->dev, recv);
    haul_device_free(r->dev, send);
    free(host);
}

static void broadcast(struct rank *r, uint64_t bytes, int root)
{
    unsigned char *host = malloc(bytes + 1), *buf = memory(r, bytes);

    fill(host, r->rank, 0, bytes);
    MUST(haul_device_copy_h2d(r->dev, buf, host, bytes, r->stream) == 0);
    MUST(r->comm->ops->broadcast(r->comm, buf, bytes, (unsigned)root, r->stream) == 0);
    MUST(haul_device_copy_d2h(r->dev, host, buf, bytes, r->stream) == 0);
    MUST(haul_device_stream_sync(r->dev, r->stream) == 0);
    MUST(same(host, root, 0, bytes));
    haul_device_free(r->dev, buf);
    free(host);
}

static void all_moves(struct rank *r)
{
    static const uint64_t sizes[] = {0, 1, 4097, 200003};

    for (int i = 0; i < 4; i++) {
        gather(r, sizes[i], 0);
        gather(r, sizes[i], 1);
        to_all(r, sizes[i]);
        for (int root = 0; root < r->nranks; root++)
            broadcast(r, sizes[i], root);
    }
    MUST(r->comm->ops->broadcast(r->comm, NULL, 1, (unsigned)r->nranks, r->stream) == -EINVAL);
}

/* Values whose sum depends on the order, and more than travel at once. */
static void all_scalars(struct rank *r)
{
    enum { N = 2500 };
    static const double big[4] = {1e16, 3.0, -1e16, 1.0 / 3};
    double *sum = malloc(N * sizeof *sum);
    uint64_t count[2] = {(uint64_t)r->rank + 1, 7};

    for (int i = 0; i < N; i++)
        sum[i] = big[(r->rank + i) % 4] * (i + 1);
    MUST(r->comm->ops->all_reduce(r->comm, HAUL_COMM_SUM_F64, sum, N) == 0);
    for (int i = 0; i < N; i++) {
        double s = big[i % 4] * (i + 1);

        for (int from = 1; from < r->nranks; from++)
            s += big[(from + i) % 4] * (i + 1);
        MUST(memcmp(&s, &sum[i], sizeof s) == 0);
    }
    MUST(r->comm->ops->all_reduce(r->comm, HAUL_COMM_MAX_U64, count, 2) == 0);
    MUST(count[0] == (uint64_t)r->nranks && count[1] == 7);
    MUST(r->comm->ops->barrier(r->comm) == 0);
    free(sum);
}

static void moves_over(struct rank *r)
{
    open_comm(r);
    MUST(r->comm->rank == (uint32_t)r->rank && r->comm->nranks == (uint32_t)r->nranks);
    MUST(r->comm->ops->reduce_scatter == NULL);
    all_moves(r);
    all_scalars(r);
    haul_comm_close(r->comm);
}

Test(comm_nccl, ranks_meet_over_another_communicator_and_move_every_size)
{
    for (int nranks = 1; nranks <= 4; nranks++)
        run_ranks(nranks, 60, moves_over);
}

/* ---- the trainer's own communicator ---- */

struct trainer {
    struct nccl_lib lib;
    struct ncclComm *comm;
};

/* As a trainer does it: blocking, its id told through memory that the ranks share. */
static struct trainer trainer_open(struct rank *r)
{
    struct trainer t = {.comm = NULL};
    uint64_t word[16] = {0};
    struct nccl_id id;
    int entered;

    MUST(hl_nccl_open(&t.lib) == 0);
    if (r->rank == 0) {
        MUST(t.lib.ncclGetUniqueId(&id) == 0);
        memcpy(word, &id, sizeof id);
    }
    MUST(r->over->ops->all_reduce(r->over, HAUL_COMM_SUM_U64, word, 16) == 0);
    memcpy(&id, word, sizeof id);
    entered = hl_cuda_context_enter(r->dev, NULL);
    MUST(entered >= 0);
    MUST(t.lib.ncclCommInitRankConfig(&t.comm, r->nranks, id, r->rank, NULL) == 0);
    hl_cuda_context_leave(r->dev, entered);
    return t;
}

static void trainer_close(struct trainer *t)
{
    if (t->comm) {
        int result;

        (void)t->lib.ncclCommFinalize(t->comm);
        while (t->lib.ncclCommGetAsyncError(t->comm, &result) == 0 && result == NCCL_IN_PROGRESS)
            usleep(100);
        MUST(t->lib.ncclCommDestroy(t->comm) == 0);
    }
    hl_nccl_close(&t->lib);
}

static void split_from(struct rank *r)
{
    struct trainer t = trainer_open(r);
    struct haul_comm_nccl_opts opts = over_opts(r);

    opts.over = NULL;
    opts.from = t.comm;
    MUST(haul_comm_nccl_open(&opts, r->dev, &r->comm) == 0);
    MUST(r->comm->rank == (uint32_t)r->rank && r->comm->nranks == (uint32_t)r->nranks);
    MUST(r->comm->local_rank == (uint32_t)r->rank && r->comm->nlocal == (uint32_t)r->nranks);
    all_moves(r);
    all_scalars(r);
    haul_comm_close(r->comm);
    trainer_close(&t);
}

Test(comm_nccl, a_trainers_communicator_is_split_and_scalars_go_through_the_gpu)
{
    run_ranks(1, 60, split_from);
    run_ranks(3, 60, split_from);
}

static void take_over(struct rank *r)
{
    struct trainer t = trainer_open(r);
    struct haul_comm_nccl_opts opts = over_opts(r);

    opts.from = t.comm;
    opts.hand_over = 1;
    MUST(haul_comm_nccl_open(&opts, r->dev, &r->comm) == 0);
    t.comm = NULL;
    all_moves(r);
    all_scalars(r);
    haul_comm_close(r->comm);
    trainer_close(&t);
}

Test(comm_nccl, a_trainers_communicator_can_be_handed_over)
{
    run_ranks(2, 60, take_over);
}

/* ---- the library's own reduction ---- */

static float number(int from, int to, uint64_t i)
{
    static const float size[3] = {16777216.0f, 0.5f, 0.0078125f};

    return (float)((int)(i % 64) + from * 3 + to - 20) * size[(i + (uint64_t)from) % 3];
}

/* FP32 into FP32; gives how many elements have other bits than a loop in rank order. */
static int reduced_otherwise(struct rank *r, struct haul_comm *comm)
{
    enum { N = 1000 };
    uint64_t scratch = hl_comm_reduce_scratch_bytes((uint32_t)r->nranks, HAUL_FP32, N);
    float *host = malloc((size_t)r->nranks * N * 4), *src = memory(r, (uint64_t)r->nranks * N * 4);
    float *dst = memory(r, N * 4), *room = memory(r, scratch);
    struct haul_comm_count counts[HAUL_COMM_NKINDS] = {{0}};
    struct hl_comm_reduce args = {src, dst, HAUL_FP32, N, room};
    int other = 0;

    for (int to = 0; to < r->nranks; to++)
        for (uint64_t i = 0; i < N; i++)
            host[(uint64_t)to * N + i] = number(r->rank, to, i);
    MUST(haul_device_copy_h2d(r->dev, src, host, (uint64_t)r->nranks * N * 4, r->stream) == 0);
    MUST(hl_comm_reduce_scatter(comm, counts, &args, r->stream) == 0);
    MUST(haul_device_copy_d2h(r->dev, host, dst, N * 4, r->stream) == 0);
    MUST(haul_device_stream_sync(r->dev, r->stream) == 0);
    MUST(counts[HAUL_COMM_REDUCE_SCATTER].sent_bytes == (uint64_t)(r->nranks - 1) * N * 4);
    for (uint64_t i = 0; i < N; i++) {
        float sum = number(0, r->rank, i);

        for (int from = 1; from < r->nranks; from++)
            sum += number(from, r->rank, i);
        other += memcmp(&sum, &host[i], sizeof sum) != 0;
        MUST(host[i] > sum - 1024 && host[i] < sum + 1024);
    }
    haul_device_free(r->dev, src);
    haul_device_free(r->dev, dst);
    haul_device_free(r->dev, room);
    free(host);
    return other;
}

/* The fake library adds from the last rank to the first. */
static void both_reductions(struct rank *r)
{
    struct haul_comm_nccl_opts opts = over_opts(r);

    open_comm(r);
    MUST(reduced_otherwise(r, r->comm) == 0);
    haul_comm_close(r->comm);
    opts.native_reduce = 1;
    MUST(haul_comm_nccl_open(&opts, r->dev, &r->comm) == 0);
    MUST(reduced_otherwise(r, r->comm) > 10);
    haul_comm_close(r->comm);
}

Test(comm_nccl, sums_have_the_bits_of_rank_order_unless_the_library_is_asked_to_reduce)
{
    run_ranks(4, 60, both_reductions);
}

/* ---- what goes wrong ---- */

static void says(const char *words)
{
    if (!strstr(haul_last_error(), words))
        fprintf(stderr, "\"%s\" is wanted\n", words);
    MUST(strstr(haul_last_error(), words));
}

static double now_s(void)
{
    return (double)hl_clock_ns() * 1e-9;
}

/* The last rank does not come: the streams of the others go on after the time-out, and check() says why. */
static void missing(struct rank *r)
{
    unsigned char *full = memory(r, 100 * (uint64_t)r->nranks);
    double begin;

    open_comm(r);
    begin = now_s();
    if (r->rank < r->nranks - 1) {
        for (int i = 0; i < 100; i++)
            MUST(r->comm->ops->all_gather(r->comm, full, full + 100 * r->rank, 100, r->stream) ==
                 0);
        MUST(haul_device_stream_sync(r->dev, r->stream) == 0);
        MUST(now_s() - begin >= r->timeout_s);
        MUST(hl_comm_check(r->comm) == HAUL_E_NCCL);
        says("all-gather of 100 bytes a rank, call 1, has been under way for");
        MUST(r->comm->ops->all_gather(r->comm, full, full, 100, r->stream) == 0);
        MUST(hl_comm_check(r->comm) == HAUL_E_NCCL);
    } else
        usleep((unsigned)(r->timeout_s * 2e6));
    haul_comm_close(r->comm);
    haul_device_free(r->dev, full);
}

Test(comm_nccl, a_call_whose_peer_does_not_come_is_ended_and_named)
{
    run_ranks(2, 0.5, missing);
    run_ranks(4, 0.5, missing);
}

/* Without another communicator. */
static void missing_scalar(struct rank *r)
{
    struct trainer t = trainer_open(r);
    struct haul_comm_nccl_opts opts = over_opts(r);

    opts.over = NULL;
    opts.from = t.comm;
    MUST(haul_comm_nccl_open(&opts, r->dev, &r->comm) == 0);
    if (r->rank == 0) {
        MUST(r->comm->ops->barrier(r->comm) == HAUL_E_NCCL);
        says("scalars has waited 0.5 s");
        MUST(r->comm->ops->barrier(r->comm) == HAUL_E_NCCL);
        MUST(hl_comm_check(r->comm) == HAUL_E_NCCL);
    } else
        usleep(1000000);
    haul_comm_close(r->comm);
    trainer_close(&t);
}

Test(comm_nccl, a_blocking_call_whose_peer_does_not_come_ends_with_the_time_out)
{
    run_ranks(2, 0.5, missing_scalar);
}

/* NCCL notices something by itself. */
static void async_error(struct rank *r)
{
    unsigned char *full = memory(r, 100 * (uint64_t)r->nranks);

    open_comm(r);
    if (r->rank == 0) {
        MUST(r->comm->ops->all_gather(r->comm, full, full, 100, r->stream) == 0);
        nccl.broken(NCCL_REMOTE_ERROR);
        MUST(haul_device_stream_sync(r->dev, r->stream) == 0);
        MUST(hl_comm_check(r->comm) == HAUL_E_NCCL);
        says("remote process exited or there was a network error (6)");
    } else
        usleep(500000);
    haul_comm_close(r->comm);
    haul_device_free(r->dev, full);
}

Test(comm_nccl, an_error_that_nccl_notices_ends_what_is_queued)
{
    run_ranks(2, 60, async_error);
}

/* One gives up: the others hear of it through the other communicator, long before the time-out. */
static void give_up(struct rank *r)
{
    unsigned char *full = memory(r, 100 * (uint64_t)r->nranks);
    double begin = now_s();

    open_comm(r);
    MUST(r->comm->ops->barrier(r->comm) == 0);
    if (r->rank == 0) {
        r->comm->ops->abort(r->comm);
        MUST(hl_comm_check(r->comm) == HAUL_E_NCCL);
        says("rank 0, this one, has given up");
    } else {
        MUST(r->comm->ops->all_gather(r->comm, full, full + 100 * r->rank, 100, r->stream) == 0);
        MUST(haul_device_stream_sync(r->dev, r->stream) == 0);
        MUST(hl_comm_check(r->comm) < 0);
    }
    MUST(r->comm->ops->barrier(r->comm) < 0);
    MUST(now_s() - begin < 30);
    haul_comm_close(r->comm);
    haul_device_free(r->dev, full);
}

Test(comm_nccl, when_one_rank_gives_up_the_streams_of_the_others_go_on)
{
    run_ranks(3, 60, give_up);
}

/* ---- open ---- */

static void refusals(struct rank *r)
{
    struct haul_comm_nccl_opts opts = over_opts(r);
    struct haul_device *emulated = device_plain();
    struct trainer t;

    MUST(haul_comm_nccl_open(NULL, r->dev, &r->comm) == -EINVAL);
    MUST(haul_comm_nccl_open(&opts, NULL, &r->comm) == -EINVAL);
    MUST(haul_comm_nccl_open(&opts, r->dev, NULL) == -EINVAL);
    opts.struct_size--;
    MUST(haul_comm_nccl_open(&opts, r->dev, &r->comm) == HAUL_E_ABI);
    opts = over_opts(r);
    opts.over = NULL;
    MUST(haul_comm_nccl_open(&opts, r->dev, &r->comm) == -EINVAL);
    says("neither");
    opts = over_opts(r);
    opts.timeout_s = 0;
    MUST(haul_comm_nccl_open(&opts, r->dev, &r->comm) == -EINVAL);
    opts = over_opts(r);
    MUST(haul_comm_nccl_open(&opts, emulated, &r->comm) == HAUL_E_DEVICE);
    says("host (emulated) is not a GPU");
    nccl.version(21000);
    MUST(haul_comm_nccl_open(&opts, r->dev, &r->comm) == HAUL_E_NCCL);
    says("is version 21000: install NCCL 2.18");
    nccl.version(22800);

    /* One rank cannot: all are told. */
    if (r->rank == 0)
        nccl.fail_nth(1, NCCL_SYSTEM_ERROR);
    MUST(haul_comm_nccl_open(&opts, r->dev, &r->comm) == HAUL_E_NCCL);
    says(r->rank == 0 ? "ncclGetVersion: fake error (2): told by the fake library"
                      : "another rank could not open");
    nccl.fail_nth(0, 0);

    /* The trainer's communicator is of another GPU, or in another order. */
    t = trainer_open(r);
    opts.from = t.comm;
    r->over->rank = (uint32_t)(r->nranks - 1 - r->rank);
    MUST(haul_comm_nccl_open(&opts, r->dev, &r->comm) == -EINVAL);
    says("in the communicator `over`");
    r->over->rank = (uint32_t)r->rank;
    trainer_close(&t);
    MUST(r->comm == NULL);
    MUST(haul_device_close(emulated) == 0);
}

Test(comm_nccl, open_refuses_by_name)
{
    run_ranks(2, 20, refusals);
}

/* Every fallible call in turn, on a rank alone: the error is reported and nothing is left. */
static void open_sweep(struct rank *r)
{
    struct haul_comm_nccl_opts opts = over_opts(r);
    struct trainer t = trainer_open(r);
    struct census before;
    int failures = 0;

    haul_device_free(r->dev, memory(r, 1)); /* the device keeps a table from then on */
    for (int way = 0; way < 6; way++) {
        for (int64_t n = 1;; n++) {
            int failed;

            opts.from = way % 2 ? t.comm : NULL;
            opts.over = way % 2 ? NULL : r->over;
            before = census_take();
            if (way < 2)
                nccl.fail_nth(n, NCCL_SYSTEM_ERROR);
            else if (way < 4)
                fake.fail_nth(n, CUDA_UNKNOWN);
            else if (hl_sys_fail_nth(n, ENOMEM) < 0)
                break;
            int rc = haul_comm_nccl_open(&opts, r->dev, &r->comm);
            failed = way < 2 ? nccl.failed() : way < 4 ? fake.failed() != NULL : hl_sys_failed();
            nccl.fail_nth(0, 0);
            fake.fail_nth(0, 0);
            hl_sys_fail_nth(0, 0);
            if (rc == 0)
                haul_comm_close(r->comm);
            else {
                MUST(failed && r->comm == NULL && *haul_last_error());
                failures++;
            }
            r->comm = NULL;
            for (int k = 0; k < HL_SYS_NKINDS; k++)
                MUST(hl_sys_live((enum hl_sys_kind)k) == before.live[k]);
            if (!failed)
                break;
        }
    }
    MUST(failures > 100);
    trainer_close(&t);
}

Test(comm_nccl, open_unwinds_from_every_failure)
{
    run_ranks(1, 20, open_sweep);
}

/* The same while it works. */
static void work_sweep(struct rank *r)
{
    unsigned char *mem = memory(r, 4096);

    for (int64_t n = 1;; n++) {
        int failed, rc;

        open_comm(r);
        nccl.fail_nth(n, NCCL_SYSTEM_ERROR);
        rc = r->comm->ops->all_to_all(r->comm, mem, mem + 1024, 100, r->stream);
        if (rc == 0)
            rc = haul_device_stream_sync(r->dev, r->stream);
        failed = nccl.failed();
        nccl.fail_nth(0, 0);
        if (rc == 0)
            rc = hl_comm_check(r->comm);
        MUST(rc == 0 || (rc == HAUL_E_NCCL && hl_comm_check(r->comm) == HAUL_E_NCCL));
        haul_comm_close(r->comm);
        if (!failed || n > 20)
            break;
    }
    haul_device_free(r->dev, mem);
}

Test(comm_nccl, a_call_that_nccl_refuses_is_an_error_and_the_communicator_is_over)
{
    run_ranks(1, 20, work_sweep);
}

/* ---- the true library ---- */

/* Where it is installed beside the toolkit, it need not be on the loader's path. */
static void *true_nccl(void)
{
    static const char *const path[] = {"libnccl.so.2", "/usr/local/cuda/lib64/libnccl.so.2",
                                       "/usr/local/cuda/lib/libnccl.so.2"};
    void *lib = NULL;

    for (int i = 0; i < 3 && !lib; i++)
        lib = dlopen(path[i], RTLD_NOW | RTLD_LOCAL);
    return lib;
}

Test(comm_nccl, the_true_library_has_every_function)
{
    struct nccl_lib lib;
    int status = 0;
    pid_t pid;

    fflush(NULL);
    pid = fork();
    cr_assert_neq(pid, -1);
    if (pid == 0) {
        if (!true_nccl())
            _exit(77);
        MUST(hl_nccl_open(&lib) == 0);
        MUST(lib.version >= NCCL_LEAST_VERSION);
        hl_nccl_close(&lib);
        _exit(0);
    }
    cr_assert_eq(waitpid(pid, &status, 0), pid);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 77)
        SKIP("no libnccl.so.2 here");
    cr_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0, "status %x", (unsigned)status);
}
