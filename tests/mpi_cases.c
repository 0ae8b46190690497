/*
 * mpi_cases.c: what the ranks of test_comm_mpi do, one case a run:
 *
 *     mpirun -n N mpi_cases NAME
 *
 * Each rank checks what it sees. Exit code 0: right on all ranks; 1: something is wrong, and stderr says
 * what; nothing else is printed.
 */
#include <dlfcn.h>
#include <pthread.h>

#include "haul/device_cuda.h"
#include "mpi_cases.h"

int rank, nranks, wrong;
static bool on_gpu;
static uint64_t stage_bytes; /* 0: as it is by default */

void error_says(const char *words)
{
    CHECK(strstr(haul_last_error(), words), "\"%s\" is not in the text", words);
}

/* ---- what every case needs ---- */

struct haul_comm_mpi_opts opts_of(double timeout_s, uint64_t piece_bytes)
{
    struct haul_comm_mpi_opts opts;

    haul_comm_mpi_opts_init(&opts);
    opts.timeout_s = timeout_s;
    if (piece_bytes)
        opts.piece_bytes = piece_bytes;
    if (stage_bytes)
        opts.stage_bytes = stage_bytes;
    return opts;
}

/* A GPU of the fake driver, whose memory no other process and no host function can reach. */
static struct haul_device *gpu(void)
{
    struct haul_device *dev = NULL;

#ifdef FAKE_CUDA_LIB
    if (!dlopen(FAKE_CUDA_LIB, RTLD_NOW | RTLD_GLOBAL))
        fprintf(stderr, "%s\n", dlerror());
#endif
    MUST(haul_device_cuda_open(NULL, &dev));
    return dev;
}

struct haul_device *device(void)
{
    struct haul_device_host_opts opts;
    struct haul_device *dev = NULL;

    if (on_gpu)
        return gpu();
    haul_device_host_opts_init(&opts);
    opts.kernel_threads = 1;
    opts.jitter_seed = (uint64_t)rank + 1;
    MUST(haul_device_host_open(&opts, &dev));
    return dev;
}

struct bench bench_open(double timeout_s, uint64_t piece_bytes)
{
    struct haul_comm_mpi_opts opts = opts_of(timeout_s, piece_bytes);
    struct bench b = {.dev = device()};

    MUST(haul_comm_mpi_open(&opts, b.dev, &b.comm));
    MUST(haul_device_stream_open(b.dev, &b.stream));
    return b;
}

void bench_close(struct bench *b)
{
    haul_device_stream_close(b->dev, b->stream);
    haul_comm_close(b->comm);
    MUST(haul_device_close(b->dev));
}

void *memory(struct bench *b, uint64_t bytes)
{
    void *p = NULL;

    MUST(haul_device_alloc(b->dev, bytes ? bytes : 1, &p));
    return p;
}

/* Byte i of what rank `from` has for rank `to`. */
static unsigned char byte_of(int from, int to, uint64_t i)
{
    return (unsigned char)(i * 7 + i / 251 + (uint64_t)from * 31 + (uint64_t)to * 101 + 1);
}

static void fill(unsigned char *at, int from, int to, uint64_t bytes)
{
    for (uint64_t i = 0; i < bytes; i++)
        at[i] = byte_of(from, to, i);
}

static uint64_t differing(const unsigned char *at, int from, int to, uint64_t bytes)
{
    uint64_t n = 0;

    for (uint64_t i = 0; i < bytes; i++)
        n += at[i] != byte_of(from, to, i);
    return n;
}

/* ---- right results ---- */

static void gather(struct bench *b, uint64_t bytes, bool in_place)
{
    uint64_t all = bytes * (uint64_t)nranks;
    unsigned char *host = malloc(all + 1), *full = memory(b, all), *shard = memory(b, bytes);
    unsigned char *own = in_place ? full + (uint64_t)rank * bytes : shard;

    fill(host, rank, 0, bytes);
    MUST(haul_device_copy_h2d(b->dev, own, host, bytes, b->stream));
    MUST(b->comm->ops->all_gather(b->comm, full, own, bytes, b->stream));
    MUST(haul_device_copy_d2h(b->dev, host, full, all, b->stream));
    MUST(haul_device_stream_sync(b->dev, b->stream));
    MUST(b->comm->ops->check(b->comm));
    for (int r = 0; r < nranks; r++)
        CHECK(differing(host + (uint64_t)r * bytes, r, 0, bytes) == 0, "%llu bytes of rank %d",
              (unsigned long long)bytes, r);
    haul_device_free(b->dev, full);
    haul_device_free(b->dev, shard);
    free(host);
}

static void to_all(struct bench *b, uint64_t bytes)
{
    uint64_t all = bytes * (uint64_t)nranks;
    unsigned char *host = malloc(all + 1), *recv = memory(b, all), *send = memory(b, all);

    for (int r = 0; r < nranks; r++)
        fill(host + (uint64_t)r * bytes, rank, r, bytes);
    MUST(haul_device_copy_h2d(b->dev, send, host, all, b->stream));
    MUST(b->comm->ops->all_to_all(b->comm, recv, send, bytes, b->stream));
    MUST(haul_device_copy_d2h(b->dev, host, recv, all, b->stream));
    MUST(haul_device_stream_sync(b->dev, b->stream));
    MUST(b->comm->ops->check(b->comm));
    for (int r = 0; r < nranks; r++)
        CHECK(differing(host + (uint64_t)r * bytes, r, rank, bytes) == 0, "%llu bytes of rank %d",
              (unsigned long long)bytes, r);
    haul_device_free(b->dev, recv);
    haul_device_free(b->dev, send);
    free(host);
}

static void broadcast(struct bench *b, uint64_t bytes, int root)
{
    unsigned char *host = malloc(bytes + 1), *buf = memory(b, bytes);

    fill(host, rank, 0, bytes);
    MUST(haul_device_copy_h2d(b->dev, buf, host, bytes, b->stream));
    MUST(b->comm->ops->broadcast(b->comm, buf, bytes, (unsigned)root, b->stream));
    MUST(haul_device_copy_d2h(b->dev, host, buf, bytes, b->stream));
    MUST(haul_device_stream_sync(b->dev, b->stream));
    MUST(b->comm->ops->check(b->comm));
    CHECK(differing(host, root, 0, bytes) == 0, "%llu bytes of root %d", (unsigned long long)bytes,
          root);
    haul_device_free(b->dev, buf);
    free(host);
}

static void all_moves(struct bench *b, uint64_t bytes)
{
    gather(b, bytes, false);
    gather(b, bytes, true);
    to_all(b, bytes);
    for (int root = 0; root < nranks; root++)
        broadcast(b, bytes, root);
}

/* Sizes around the limit of a message, which is lowered to 1000 bytes. */
static void case_moves(void)
{
    static const uint64_t sizes[] = {0, 1, 7, 999, 1000, 1001, 2000, 30011};
    struct bench b = bench_open(60, 1000);

    CHECK(b.comm->rank == (uint32_t)rank && b.comm->nranks == (uint32_t)nranks, "who is who");
    CHECK(b.comm->local_rank == (uint32_t)rank && b.comm->nlocal == (uint32_t)nranks, "one node");
    for (unsigned i = 0; i < sizeof sizes / sizeof *sizes; i++)
        all_moves(&b, sizes[i]);
    CHECK(b.comm->ops->broadcast(b.comm, NULL, 1, (unsigned)nranks, b.stream) == -EINVAL,
          "a root that is none");
    bench_close(&b);
}

/* With pieces as they are by default; past the eager limits of every transport. */
static void case_large(void)
{
    struct bench b = bench_open(60, 0);

    all_moves(&b, 5000017);
    gather(&b, (UINT64_C(20) << 20) + 3, true);
    bench_close(&b);
}

/* Through pinned host memory of 4000 bytes, and as much as it is by default. */
static void case_gpu(void)
{
    on_gpu = true;
    stage_bytes = 4000;
    case_moves();
    stage_bytes = 0;
    case_large();
}

/* A GPU's pieces are not an emulated device's. */
static void case_mixed(void)
{
    struct haul_comm_mpi_opts opts = opts_of(20, 0);
    struct haul_device *dev;
    struct haul_comm *comm = NULL;

    on_gpu = rank == 0;
    dev = device();
    CHECK(haul_comm_mpi_open(&opts, dev, &comm) == -EINVAL, "not refused");
    error_says("some ranks have an emulated device and others do not");
    MUST(haul_device_close(dev));
}

/* Of the ranks' sizes of a message the least counts. */
static void case_pieces_differ(void)
{
    struct bench b = bench_open(60, 500 + 100 * (uint64_t)rank);

    all_moves(&b, 12345);
    bench_close(&b);
}

/* More calls under way than the queue holds, and more than tags go round. */
static void case_many(void)
{
    struct bench b = bench_open(60, 0);
    unsigned char *full = memory(&b, 8 * (uint64_t)nranks), host[8];

    for (int i = 0; i < 5000; i++) {
        fill(host, rank, i, 8);
        MUST(b.comm->ops->all_gather(b.comm, full, full + 8 * rank, 8, b.stream));
    }
    MUST(haul_device_stream_sync(b.dev, b.stream));
    MUST(b.comm->ops->check(b.comm));
    all_moves(&b, 100);
    haul_device_free(b.dev, full);
    bench_close(&b);
}

/* Two streams: calls run in the order in which they were queued, on whatever stream. */
static void case_streams(void)
{
    struct bench b = bench_open(60, 0);
    uint64_t each = 4096, all = each * (uint64_t)nranks;
    unsigned char *host = malloc(all), *full[2] = {memory(&b, all), memory(&b, all)};
    void *stream[2] = {b.stream, NULL};

    MUST(haul_device_stream_open(b.dev, &stream[1]));
    for (int i = 0; i < 100; i++) {
        int s = i * 7 % 3 == 0;

        fill(host, rank, i, each);
        MUST(haul_device_copy_h2d(b.dev, full[s] + each * (uint64_t)rank, host, each, stream[s]));
        MUST(haul_device_stream_sync(b.dev, stream[s]));
        MUST(b.comm->ops->all_gather(b.comm, full[s], full[s] + each * (uint64_t)rank, each,
                                     stream[s]));
        if (i % 10 == 9) {
            MUST(haul_device_copy_d2h(b.dev, host, full[s], all, stream[s]));
            MUST(haul_device_stream_sync(b.dev, stream[s]));
            for (int r = 0; r < nranks; r++)
                CHECK(differing(host + each * (uint64_t)r, r, i, each) == 0, "call %d", i);
        }
    }
    MUST(haul_device_stream_sync(b.dev, stream[0]));
    MUST(haul_device_stream_sync(b.dev, stream[1]));
    MUST(b.comm->ops->check(b.comm));
    haul_device_stream_close(b.dev, stream[1]);
    haul_device_free(b.dev, full[0]);
    haul_device_free(b.dev, full[1]);
    free(host);
    bench_close(&b);
}

/* ---- scalars ---- */

/* Doubles whose sum depends on the order: added here in rank order, without haul. */
static double term(int r, int i)
{
    static const double big[4] = {1e16, 3.0, -1e16, 1.0 / 3};

    return big[(r + i) % 4] * (1 + i);
}

static void case_scalars(void)
{
    enum { N = 2500 }; /* more than travel at once */
    struct bench b = bench_open(60, 0);
    double *sum = malloc(N * sizeof *sum), *max = malloc(N * sizeof *max);
    uint64_t *count = malloc(N * sizeof *count), one;

    for (int i = 0; i < N; i++) {
        sum[i] = max[i] = term(rank, i);
        count[i] = UINT64_MAX / 3 + (uint64_t)(rank * 5 + i);
    }
    MUST(b.comm->ops->all_reduce(b.comm, HAUL_COMM_SUM_F64, sum, N));
    MUST(b.comm->ops->all_reduce(b.comm, HAUL_COMM_MAX_F64, max, N));
    MUST(b.comm->ops->all_reduce(b.comm, HAUL_COMM_SUM_U64, count, N));
    for (int i = 0; i < N; i++) {
        double s = term(0, i), m = term(0, i);
        uint64_t c = UINT64_MAX / 3 + (uint64_t)i;

        for (int r = 1; r < nranks; r++) {
            s += term(r, i);
            m = term(r, i) > m ? term(r, i) : m;
            c += UINT64_MAX / 3 + (uint64_t)(r * 5 + i);
        }
        CHECK(memcmp(&s, &sum[i], sizeof s) == 0, "sum %d: %a, not %a", i, sum[i], s);
        CHECK(m == max[i], "max %d", i);
        CHECK(c == count[i], "count %d", i);
    }
    one = (uint64_t)rank + 7;
    MUST(b.comm->ops->all_reduce(b.comm, HAUL_COMM_MAX_U64, &one, 1));
    CHECK(one == (uint64_t)nranks + 6, "the greatest is %llu", (unsigned long long)one);
    MUST(b.comm->ops->all_reduce(b.comm, HAUL_COMM_SUM_F64, NULL, 0));
    MUST(b.comm->ops->barrier(b.comm));
    free(sum);
    free(max);
    free(count);
    bench_close(&b);
}

/* Scalars of one thread while the other's collectives are under way. */
struct talk {
    struct haul_comm *comm;
    int n;
};

static void *talk(void *arg)
{
    struct talk *t = arg;

    for (int i = 0; i < t->n; i++) {
        uint64_t word = (uint64_t)(rank == i % nranks);

        MUST(t->comm->ops->all_reduce(t->comm, HAUL_COMM_SUM_U64, &word, 1));
        CHECK(word == 1, "round %d: %llu", i, (unsigned long long)word);
    }
    return NULL;
}

static void case_two_threads(void)
{
    struct bench b = bench_open(60, 0);
    struct talk t = {b.comm, 200};
    pthread_t thread;

    if (pthread_create(&thread, NULL, talk, &t))
        _exit(1);
    for (int i = 0; i < 20; i++)
        all_moves(&b, (uint64_t)(i * 977));
    pthread_join(thread, NULL);
    bench_close(&b);
}

/* ---- the sum over ranks ---- */

static float widen(const void *at, enum haul_dtype dtype, uint64_t i)
{
    uint32_t bits;
    float f;

    if (dtype == HAUL_FP32)
        return ((const float *)at)[i];
    bits = (uint32_t)((const uint16_t *)at)[i] << 16;
    memcpy(&f, &bits, sizeof f);
    return f;
}

/* A BF16 or FP32 value of rank r for rank `to`: of sizes whose FP32 sum depends on the order. */
static void put(void *at, enum haul_dtype dtype, uint64_t i, int r, int to)
{
    float f = (float)((i * 37 + (uint64_t)r * 11 + (uint64_t)to * 5) % 97) - 48.0f;
    uint32_t bits;

    f *= (i + (uint64_t)r) % 3 == 0 ? 1e6f : (i + (uint64_t)r) % 3 == 1 ? 0.37f : 1e-4f;
    memcpy(&bits, &f, sizeof bits);
    if (dtype == HAUL_FP32)
        ((float *)at)[i] = f;
    else
        ((uint16_t *)at)[i] = (uint16_t)(bits >> 16);
}

static uint64_t size_of(enum haul_dtype dtype)
{
    return dtype == HAUL_FP32 ? 4 : 2;
}

/* As BF16 holds it, half to even. */
static float as_stored(enum haul_dtype dtype, float f)
{
    uint32_t bits, rest;

    if (dtype == HAUL_FP32)
        return f;
    memcpy(&bits, &f, sizeof bits);
    rest = bits & 0xffffu;
    bits = (bits >> 16) + (rest > 0x8000u || (rest == 0x8000u && bits >> 16 & 1));
    bits <<= 16;
    memcpy(&f, &bits, sizeof f);
    return f;
}

/* The bits must be those of a plain loop in rank order. *differs: that another order gives other bits. */
static void reduce(struct bench *b, enum haul_dtype dtype, uint64_t n, uint64_t *differs)
{
    uint64_t each = n * size_of(dtype), all = each * (uint64_t)nranks;
    uint64_t scratch = hl_comm_reduce_scratch_bytes((uint32_t)nranks, dtype, n);
    char *host = malloc(all + 4), *src = memory(b, all), *room = memory(b, scratch);
    char *got = malloc(each + 4), *dst = memory(b, each);
    struct haul_comm_count counts[HAUL_COMM_NKINDS] = {{0}};
    const struct haul_comm_count *c = &counts[HAUL_COMM_REDUCE_SCATTER];
    struct hl_comm_reduce args = {src, dst, dtype, n, room};

    for (int to = 0; to < nranks; to++)
        for (uint64_t i = 0; i < n; i++)
            put(host + each * (uint64_t)to, dtype, i, rank, to);
    MUST(haul_device_copy_h2d(b->dev, src, host, all, b->stream));
    MUST(hl_comm_reduce_scatter(b->comm, counts, &args, b->stream));
    MUST(haul_device_copy_d2h(b->dev, got, dst, each, b->stream));
    MUST(haul_device_stream_sync(b->dev, b->stream));
    MUST(hl_comm_check(b->comm));
    for (uint64_t i = 0; i < n; i++) {
        float sum = 0, back = 0, here = widen(got, dtype, i);

        for (int r = 0; r < nranks; r++) {
            put(host, dtype, i, r, rank);
            sum = r ? sum + widen(host, dtype, i) : widen(host, dtype, i);
        }
        for (int r = nranks; r-- > 0;) {
            put(host, dtype, i, r, rank);
            back = r < nranks - 1 ? back + widen(host, dtype, i) : widen(host, dtype, i);
        }
        *differs += memcmp(&sum, &back, sizeof sum) != 0;
        sum = as_stored(dtype, sum);
        CHECK(memcmp(&sum, &here, sizeof sum) == 0, "element %llu: %a, not %a",
              (unsigned long long)i, (double)here, (double)sum);
    }
    CHECK(c->calls == 1 && c->elems == n * (uint64_t)nranks, "counted");
    CHECK(c->sent_elems == n * (uint64_t)(nranks - 1), "sent");
    CHECK(c->sent_bytes == each * (uint64_t)(nranks - 1), "sent bytes");
    haul_device_free(b->dev, src);
    haul_device_free(b->dev, room);
    haul_device_free(b->dev, dst);
    free(host);
    free(got);
}

static void case_reduce(void)
{
    static const uint64_t sizes[] = {1, 3, 4097, 40003};
    struct bench b = bench_open(60, 4096);
    uint64_t differs = 0;

    for (unsigned i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        reduce(&b, HAUL_BF16, sizes[i], &differs);
        reduce(&b, HAUL_FP32, sizes[i], &differs);
    }
    CHECK(nranks < 3 || differs > 100, "the values do not show the order: %llu",
          (unsigned long long)differs);
    bench_close(&b);
}

/* ---- waiting ---- */

/* Not all ranks open. */
static void case_alone(void)
{
    struct haul_comm_mpi_opts opts = opts_of(1, 0);
    struct haul_device *dev = device();
    struct haul_comm *comm = NULL;

    if (rank == 0) {
        CHECK(haul_comm_mpi_open(&opts, dev, &comm) == HAUL_E_MPI, "no error");
        error_says("not all");
    } else
        sleep(3);
    MUST(haul_device_close(dev));
}

/* Waiting ranks leave the cores to who works. */
static void case_waiting_is_cheap(void)
{
    struct bench b = bench_open(60, 0);
    struct timespec before, after;
    double cpu;

    MUST(b.comm->ops->barrier(b.comm));
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &before);
    if (rank == 0)
        sleep(2);
    MUST(b.comm->ops->barrier(b.comm));
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &after);
    cpu = (double)(after.tv_sec - before.tv_sec) + 1e-9 * (double)(after.tv_nsec - before.tv_nsec);
    CHECK(cpu < 0.5, "waited 2 s with %g s of a core", cpu);
    bench_close(&b);
}

static const struct {
    const char *name;
    void (*run)(void);
} cases[] = {
    {"moves", case_moves},
    {"large", case_large},
    {"gpu", case_gpu},
    {"mixed", case_mixed},
    {"pieces_differ", case_pieces_differ},
    {"many", case_many},
    {"streams", case_streams},
    {"scalars", case_scalars},
    {"two_threads", case_two_threads},
    {"reduce", case_reduce},
    {"missing", case_missing},
    {"killed", case_killed},
    {"killed_unwatched", case_killed_unwatched},
    {"abort", case_abort},
    {"disagree", case_disagree},
    {"open", case_open},
    {"alone", case_alone},
    {"waiting_is_cheap", case_waiting_is_cheap},
};

int main(int argc, char **argv)
{
    int level;

    if (argc == 2 && strcmp(argv[1], "thread_level") == 0)
        return thread_level(&argc, &argv);
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &nranks);
    for (unsigned i = 0; argc == 2 && i < sizeof cases / sizeof *cases; i++)
        if (strcmp(argv[1], cases[i].name) == 0) {
            cases[i].run();
            MPI_Finalize();
            return wrong != 0;
        }
    fprintf(stderr, "usage: mpirun -n N mpi_cases NAME\n");
    return 2;
}
