/* bench_beside.c: updates in a thread of their own, while this one copies, or drives a store. */
#include "bench_beside.h"

#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>

#include "clock.h"
#include "fail.h"
#include "sys.h"
#include "team.h"

/* More than caches hold; updated in pieces, so that bytes are counted every millisecond or so. */
#define ELEMS       (UINT64_C(8) << 20)
#define PIECE_ELEMS (UINT64_C(1) << 19)
#define COPY_BYTES  (UINT64_C(64) << 20)
#define BYTES       (16 * ELEMS + 2 * COPY_BYTES)
#define CHUNK_BYTES (UINT64_C(4) << 20) /* as the emulated link's */
#define WINDOW_NS   UINT64_C(30000000)

struct hl_beside {
    enum haul_master master;
    uint32_t nthreads;
    uint64_t unit_elems;
    enum kernel { UPDATE = 0, NORM, ACCUMULATE } kernel;
    char *mem; /* gradient, parameter, master, m, v; then source and target of copies */
    pthread_t thread;
    atomic_int stop;
    atomic_int rc;
    _Atomic uint64_t bytes; /* of updates so far */
};

/* ---- the optimizer's thread ---- */

static uint64_t master_bytes(const struct hl_beside *b)
{
    return b->master == HAUL_MASTER_SPLIT ? 2 : 4;
}

/* Of n elements, whose gradients and parameters are those of b from `at` on. */
static int update_record(struct hl_beside *b, const struct haul_optim *optim, uint64_t at,
                         uint64_t n, char *master, char *m, char *v)
{
    struct haul_optim_step step = {
        .struct_size = sizeof step, .step = 1, .lr = 1e-4, .grad_scale = 1};
    struct haul_optim_arrays a = {.struct_size = sizeof a,
                                  .n = n,
                                  .grad_dtype = HAUL_BF16,
                                  .param_dtype = HAUL_BF16,
                                  .master_form = b->master,
                                  .grad = b->mem + 2 * at,
                                  .param = b->mem + 2 * (ELEMS + at),
                                  .master = master,
                                  .m = (float *)(void *)m,
                                  .v = (float *)(void *)v};

    return haul_optim_update(optim, &a, &step, b->nthreads);
}

static int update(struct hl_beside *b, const struct haul_optim *optim, uint64_t at)
{
    char *master = b->mem + 4 * ELEMS, *m = master + 4 * ELEMS, *v = m + 4 * ELEMS;

    return update_record(b, optim, at, PIECE_ELEMS, master + master_bytes(b) * at, m + 4 * at,
                         v + 4 * at);
}

/* A gradient on its way: its square alone, or added to sums in FP32 that have been begun. */
static int land(struct hl_beside *b, uint64_t at)
{
    const char *grad = b->mem + 2 * at;
    double sum = 0;
    int finite;

    if (b->kernel == NORM)
        return haul_norm_sumsq(grad, HAUL_BF16, b->unit_elems, b->nthreads, &sum, &finite);
    return haul_norm_accumulate((float *)(void *)(b->mem + 4 * (ELEMS + at)), grad, HAUL_BF16,
                                b->unit_elems, 0, b->nthreads, NULL, NULL);
}

/* Read and written of an element. */
static uint32_t bytes_each(const struct hl_beside *b, enum kernel kernel)
{
    return kernel == NORM                   ? 2
           : kernel == ACCUMULATE           ? 10
           : b->master == HAUL_MASTER_SPLIT ? 26
                                            : 28;
}

static void *optim_main(void *arg)
{
    struct hl_beside *b = arg;
    const uint64_t each = bytes_each(b, b->kernel);
    const uint64_t n = b->kernel == UPDATE ? PIECE_ELEMS : b->unit_elems;
    struct haul_optim optim;
    int rc = b->nthreads > 1 ? hl_team_bind(0, 1, b->nthreads) : 0;

    rc = 0; /* where binding is refused the engine's is too */
    haul_optim_init(&optim, HAUL_ADAMW);
    for (uint64_t at = 0; !atomic_load(&b->stop); at = at + 2 * n > ELEMS ? 0 : at + n) {
        rc = b->kernel == UPDATE ? update(b, &optim, at) : land(b, at);
        if (rc < 0)
            break;
        atomic_fetch_add(&b->bytes, n * each);
    }
    atomic_store(&b->rc, rc < 0 ? rc : 0);
    return NULL;
}

static int begin_thread(struct hl_beside *b, enum kernel kernel)
{
    uint64_t before = atomic_load(&b->bytes);

    b->kernel = kernel;
    atomic_store(&b->stop, 0);
    atomic_store(&b->rc, 1);
    int rc = hl_sys_thread("beside", optim_main, b, &b->thread);
    /* its team stands when the first are done */
    while (rc == 0 && atomic_load(&b->rc) == 1 &&
           atomic_load(&b->bytes) < before + 64 * PIECE_ELEMS)
        hl_clock_sleep_until(hl_clock_ns() + 200000);
    return rc;
}

static int end_thread(struct hl_beside *b)
{
    atomic_store(&b->stop, 1);
    hl_sys_join(b->thread);
    return atomic_load(&b->rc);
}

/* ---- this thread ---- */

/* As the engine's: one side is all parameters or gradients, the other two buffers of a unit, window frames or
 * gradient buffers, which a cache may hold. */
static double copy(struct hl_beside *b)
{
    const uint64_t unit = 2 * b->unit_elems, chunk = unit < CHUNK_BYTES ? unit : CHUNK_BYTES;
    const uint64_t buffers = 2 * unit / chunk * chunk, all = COPY_BYTES / chunk * chunk;
    char *src = b->mem + 16 * ELEMS, *dst = src + COPY_BYTES;
    uint64_t begin = hl_clock_ns(), now = begin, bytes = 0;

    for (; now < begin + WINDOW_NS; now = hl_clock_ns()) {
        memcpy(dst + bytes % buffers, src + bytes % all, chunk);
        bytes += chunk;
    }
    return (double)bytes / (double)(now - begin) * 1e9;
}

struct watch {
    uint64_t ns, bytes;
};

static struct watch look(struct hl_beside *b)
{
    return (struct watch){hl_clock_ns(), atomic_load(&b->bytes)};
}

static double since(struct hl_beside *b, struct watch w)
{
    struct watch now = look(b);

    return (double)(now.bytes - w.bytes) / (double)(now.ns - w.ns) * 1e9;
}

static int beside_drive(struct hl_beside *b, struct hl_bench_io *io, struct hl_beside_rates *out)
{
    struct watch w = look(b);
    struct hl_io_pass pass;
    int rc = hl_bench_io_pass(io, HL_IO_MIXED, &pass);

    if (rc < 0)
        return rc;
    out->optim_at_drive = since(b, w);
    out->drive_too = pass.gb_per_s * 1e9;
    return 0;
}

static double alone(struct hl_beside *b)
{
    struct watch w = look(b);

    hl_clock_sleep_until(w.ns + WINDOW_NS);
    return since(b, w);
}

static int landing(struct hl_beside *b, enum kernel kernel, double *out)
{
    int rc = begin_thread(b, kernel);

    if (rc < 0)
        return rc;
    *out = alone(b);
    return end_thread(b);
}

int hl_beside_take(struct hl_beside *b, struct hl_bench_io *io, struct hl_beside_rates *out)
{
    struct hl_beside_rates r = {.copy = copy(b)};
    struct watch w;
    int rc, ended;

    if ((rc = landing(b, NORM, &r.norm)) < 0 || (rc = landing(b, ACCUMULATE, &r.accumulate)) < 0 ||
        (rc = begin_thread(b, UPDATE)) < 0)
        return rc;
    r.optim = alone(b);
    w = look(b);
    r.copy_too = copy(b);
    r.optim_at_copy = since(b, w);
    if (io)
        rc = beside_drive(b, io, &r);
    ended = end_thread(b);
    if (rc == 0 && ended == 0)
        *out = r;
    return rc < 0 ? rc : ended;
}

/* ---- records from the drive ---- */

#define PAGED_RECORDS 12

struct paged {
    struct hl_beside *b;
    struct haul_optim optim;
    uint64_t elems, at; /* of a record; of the next gradient */
    double bytes, s;
};

static int update_paged(void *user, char *record)
{
    struct paged *p = user;
    const uint64_t n = p->elems;
    char *m = record + (master_bytes(p->b) * n + 63) / 64 * 64, *v = m + (4 * n + 63) / 64 * 64;
    const uint64_t begin = hl_clock_ns();
    int rc = update_record(p->b, &p->optim, p->at, n, record, m, v);

    p->s += (double)(hl_clock_ns() - begin) * 1e-9;
    p->bytes += (double)n * bytes_each(p->b, UPDATE);
    p->at = p->at + 2 * n > ELEMS ? 0 : p->at + n;
    return rc;
}

int hl_beside_paged(struct hl_beside *b, struct hl_bench_io *io, uint32_t nslots,
                    uint64_t record_bytes, double *out)
{
    struct paged p = {.b = b};
    int rc;

    /* room for the arrays' alignment */
    p.elems = (record_bytes - 128) / (b->master == HAUL_MASTER_SPLIT ? 10 : 12);
    p.elems = p.elems < ELEMS ? p.elems : ELEMS;
    haul_optim_init(&p.optim, HAUL_ADAMW);
    rc = hl_bench_io_each(io, nslots, nslots, update_paged,
                          &p); /* the team stands, memory is touched */
    p.s = p.bytes = 0;
    if (rc == 0)
        rc = hl_bench_io_each(io, nslots, PAGED_RECORDS, update_paged, &p);
    if (rc == 0)
        *out = p.bytes / p.s;
    return rc;
}

/* ---- opening ---- */

int hl_beside_open(enum haul_master master, uint32_t nthreads, uint64_t unit_elems,
                   struct hl_beside **out)
{
    struct hl_beside *b;
    void *mem;
    int rc = hl_sys_alloc(sizeof *b, &mem);

    if (rc < 0)
        return rc;
    b = mem;
    b->master = master;
    b->unit_elems = unit_elems < ELEMS ? unit_elems : ELEMS;
    b->nthreads = nthreads ? nthreads : haul_optim_threads(1);
    rc = hl_sys_map(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0, &mem);
    if (rc < 0) {
        hl_sys_free(b);
        return rc;
    }
    b->mem = mem;
    (void)hl_sys_madvise(b->mem, BYTES, MADV_HUGEPAGE); /* as the pool has them where it can */
    memset(b->mem, 0, BYTES);
    *out = b;
    return 0;
}

void hl_beside_close(struct hl_beside *b)
{
    if (!b)
        return;
    hl_sys_unmap(b->mem, BYTES);
    hl_sys_free(b);
}
