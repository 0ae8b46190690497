/* Counted collectives and the sum over ranks, between threads: one rank a thread, each with its device. */
#include <pthread.h>

#include "comm.h"
#include "test_device_fixture.h"
#include "thread_comm.h"

enum { MOST_RANKS = 4, MOST_N = 5000 };

/* What a case lets every rank do. */
struct rank {
    struct haul_device *dev;
    struct haul_comm *comm;
    void *stream;
    int rank, nranks;
    uint64_t n;
    enum haul_dtype dtype;
    struct haul_comm_count counts[HAUL_COMM_NKINDS];
    struct haul_comm_ops native_ops;
    char got[MOST_RANKS * MOST_N * 4];
    void (*fn)(struct rank *r);
};

static void *rank_main(void *arg)
{
    struct rank *r = arg;

    r->fn(r);
    return NULL;
}

/* Run fn on all ranks; the caller looks at what they left, and frees. */
static struct rank *run_ranks(int nranks, const struct rank *like, void (*fn)(struct rank *r))
{
    struct thread_world *world = thread_world_open((uint32_t)nranks);
    struct rank *ranks = calloc((size_t)nranks, sizeof *ranks);
    pthread_t thread[MOST_RANKS];

    for (int i = 0; i < nranks; i++) {
        struct rank *r = &ranks[i];

        r->n = like->n;
        r->dtype = like->dtype;
        r->rank = i;
        r->nranks = nranks;
        r->fn = fn;
        r->dev = device_plain();
        r->stream = device_stream(r->dev);
        r->comm = thread_comm_open(world, (uint32_t)i, r->dev, 60);
        cr_assert_eq(pthread_create(&thread[i], NULL, rank_main, r), 0);
    }
    for (int i = 0; i < nranks; i++) {
        pthread_join(thread[i], NULL);
        haul_device_stream_close(ranks[i].dev, ranks[i].stream);
        haul_comm_close(ranks[i].comm);
        cr_assert_eq(haul_device_close(ranks[i].dev), 0);
    }
    thread_world_close(world);
    return ranks;
}

static uint64_t size_of(enum haul_dtype dtype)
{
    return dtype == HAUL_FP32 ? 4 : 2;
}

static uint32_t bits_of(float f)
{
    uint32_t bits;

    memcpy(&bits, &f, sizeof bits);
    return bits;
}

static float float_of(uint32_t bits)
{
    float f;

    memcpy(&f, &bits, sizeof f);
    return f;
}

/* What rank r has for rank `to`: large, middling and small values whose FP32 sum depends on the order. All
 * are whole in BF16. */
static float value(int r, int to, uint64_t i)
{
    static const float size[3] = {16777216.0f, 0.5f, 0.0078125f};
    float f = (float)((int)(i * 37 % 64) + r * 3 + to - 40) * size[(i + (uint64_t)r) % 3];

    return float_of(bits_of(f) & 0xffff0000u);
}

static void put(char *at, enum haul_dtype dtype, uint64_t i, float f)
{
    if (dtype == HAUL_FP32)
        ((float *)(void *)at)[i] = f;
    else
        ((uint16_t *)(void *)at)[i] = (uint16_t)(bits_of(f) >> 16);
}

static void reduce(struct rank *r)
{
    uint64_t each = r->n * size_of(r->dtype), all = each * (uint64_t)r->nranks;
    uint64_t scratch = hl_comm_reduce_scratch_bytes((uint32_t)r->nranks, r->dtype, r->n);
    char *host = malloc(all), *src = device_mem(r->dev, all);
    char *dst = device_mem(r->dev, r->n * 4), *room = device_mem(r->dev, scratch + 1);
    struct hl_comm_reduce args = {src, dst, r->dtype, r->n, room};

    for (int to = 0; to < r->nranks; to++)
        for (uint64_t i = 0; i < r->n; i++)
            put(host + (uint64_t)to * each, r->dtype, i, value(r->rank, to, i));
    cr_assert_eq(haul_device_copy_h2d(r->dev, src, host, all, r->stream), 0);
    cr_assert_eq(hl_comm_reduce_scatter(r->comm, r->counts, &args, r->stream), 0);
    cr_assert_eq(haul_device_copy_d2h(r->dev, r->got, dst, r->n * size_of(r->dtype), r->stream), 0);
    cr_assert_eq(haul_device_stream_sync(r->dev, r->stream), 0);
    cr_assert_eq(hl_comm_check(r->comm), 0);
    haul_device_free(r->dev, src);
    haul_device_free(r->dev, dst);
    haul_device_free(r->dev, room);
    free(host);
}

/* In rank order from rank 0's value, in FP32, without haul. */
static float sum_of(int to, uint64_t i, int nranks)
{
    float sum = value(0, to, i);

    for (int r = 1; r < nranks; r++)
        sum += value(r, to, i);
    return sum;
}

/* To BF16, half to even; the values here are finite. */
static uint16_t rounded(float f)
{
    uint32_t bits = bits_of(f), rest = bits & 0xffffu, hi = bits >> 16;

    return (uint16_t)(hi + (rest > 0x8000u || (rest == 0x8000u && hi % 2 == 1)));
}

/* How many elements differ; *telling: how many sums would have other bits the other way round. */
static uint64_t wrong_sums(const struct rank *r, uint64_t *telling)
{
    uint64_t wrong = 0;

    for (uint64_t i = 0; i < r->n; i++) {
        float sum = sum_of(r->rank, i, r->nranks), back = value(r->nranks - 1, r->rank, i);

        for (int from = r->nranks - 1; from-- > 0;)
            back += value(from, r->rank, i);
        *telling += bits_of(sum) != bits_of(back);
        if (r->dtype == HAUL_FP32)
            wrong += bits_of(sum) != ((const uint32_t *)(const void *)r->got)[i];
        else
            wrong += rounded(sum) != ((const uint16_t *)(const void *)r->got)[i];
    }
    return wrong;
}

Test(comm_reduce, the_sum_is_formed_in_rank_order_and_rounded_once)
{
    static const enum haul_dtype dtypes[] = {HAUL_FP32, HAUL_BF16};
    static const uint64_t sizes[] = {1, 7, MOST_N};

    for (int nranks = 1; nranks <= MOST_RANKS; nranks++) {
        uint64_t telling = 0;

        for (int k = 0; k < 6; k++) {
            struct rank like = {.n = sizes[k % 3], .dtype = dtypes[k / 3]};
            struct rank *ranks = run_ranks(nranks, &like, reduce);

            for (int r = 0; r < nranks; r++)
                cr_assert_eq(wrong_sums(&ranks[r], &telling), 0u, "rank %d of %d, case %d", r,
                             nranks, k);
            free(ranks);
        }
        cr_assert(nranks < 3 || telling > 500, "%d ranks: only %llu values show the order", nranks,
                  (unsigned long long)telling);
    }
}

static void gather_and_reduce(struct rank *r)
{
    char *full = device_mem(r->dev, (uint64_t)r->nranks * r->n * 2);

    reduce(r);
    for (int k = 0; k < 3; k++)
        cr_assert_eq(hl_comm_all_gather(r->comm, r->counts, full,
                                        full + (uint64_t)r->rank * r->n * 2, HAUL_BF16, r->n,
                                        r->stream),
                     0);
    for (int k = 0; k < 2; k++) {
        double two[2] = {1, r->rank};

        cr_assert_eq(hl_comm_all_reduce(r->comm, r->counts, HAUL_COMM_SUM_F64, two, 2), 0);
        cr_assert_eq(two[0], r->nranks);
    }
    cr_assert_eq(haul_device_stream_sync(r->dev, r->stream), 0);
    haul_device_free(r->dev, full);
}

/* (N - 1) * n elements leave a rank in a gather or scatter of N pieces of n. */
Test(comm_reduce, calls_and_what_they_send_are_counted)
{
    for (int nranks = 1; nranks <= MOST_RANKS; nranks++) {
        struct rank like = {.n = 100, .dtype = HAUL_FP32};
        struct rank *ranks = run_ranks(nranks, &like, gather_and_reduce);
        uint64_t others = (uint64_t)nranks - 1;

        for (int r = 0; r < nranks; r++) {
            const struct haul_comm_count *c = ranks[r].counts;

            cr_assert_eq(c[HAUL_COMM_ALL_GATHER].calls, 3u);
            cr_assert_eq(c[HAUL_COMM_ALL_GATHER].elems, 3 * 100u * (uint64_t)nranks);
            cr_assert_eq(c[HAUL_COMM_ALL_GATHER].sent_elems, 3 * 100u * others);
            cr_assert_eq(c[HAUL_COMM_ALL_GATHER].sent_bytes, 3 * 100u * others * 2);
            cr_assert_eq(c[HAUL_COMM_REDUCE_SCATTER].calls, 1u);
            cr_assert_eq(c[HAUL_COMM_REDUCE_SCATTER].sent_elems, 100u * others);
            cr_assert_eq(c[HAUL_COMM_REDUCE_SCATTER].sent_bytes, 100u * others * 4,
                         "it travels in the dtype it has");
            cr_assert_eq(c[HAUL_COMM_ALL_REDUCE].calls, 2u);
            cr_assert_eq(c[HAUL_COMM_ALL_REDUCE].elems, 4u);
            cr_assert_eq(c[HAUL_COMM_ALL_REDUCE].sent_bytes, 0u);
        }
        free(ranks);
    }
}

/* ---- a library's own reduction ---- */

/* Bytes of 0x41 instead of a sum. */
static int fill_instead(struct haul_comm *comm, void *dst, const void *src, enum haul_dtype dtype,
                        uint64_t n, void *stream)
{
    return comm->dev->ops->fill(comm->dev, dst, 0x41, n * size_of(dtype), stream);
}

static void reduce_natively(struct rank *r)
{
    const struct haul_comm_ops *ops = r->comm->ops;

    r->native_ops = *ops;
    r->native_ops.reduce_scatter = fill_instead;
    r->comm->ops = &r->native_ops;
    reduce(r);
    r->comm->ops = ops;
}

Test(comm_reduce, a_library_that_reduces_by_itself_is_let_to)
{
    struct rank like = {.n = 9, .dtype = HAUL_FP32};

    for (int nranks = 1; nranks <= 2; nranks++) {
        struct rank *ranks = run_ranks(nranks, &like, reduce_natively);

        for (int r = 0; r < nranks; r++) {
            int native = ((const uint32_t *)(const void *)ranks[r].got)[8] == 0x41414141u;

            cr_assert_eq(native, nranks > 1, "of one rank there is nothing to reduce");
        }
        free(ranks);
    }
}
