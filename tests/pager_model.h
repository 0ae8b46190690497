/* pager_model.h: seeded fault schedules against a model. Included by test_pager_model.c (few) and
 * test_pager_model_long.c (many), which define NSCHEDULES.
 *
 * A small store does random reads and writes through the faulty method, several in flight. The model
 * keeps, per block, what may be there: the last acknowledged content, and contents whose write failed.
 * A read that succeeds must give one of them, whole: no wrong byte is ever handed out. */
#include "method.h"
#include "method_fault.h"

#define METHOD         (&hl_method_fault)
#define METHOD_BEGIN() ((void)0)
#include "pager_case.h"

#define NBLOCKS   12u
#define SMALL     4096u
#define NINFLIGHT 5u
#define NSTEPS    60u

/* Content of a block is filled() with its seed; 0: zeros. */
struct model_block {
    uint64_t good;      /* last acknowledged */
    uint64_t maybe[64]; /* failed writes since then: any of them may be there, whole */
    uint32_t nmaybe;
    int unknown; /* a write failed, or silent faults: reading may fail too */
    int busy;
};

struct flight {
    uint64_t token, seed;
    uint32_t block;
    int write;
    unsigned char *mem;
};

struct model {
    struct haul_store *store;
    struct model_block blocks[NBLOCKS];
    struct flight flights[NINFLIGHT];
    uint64_t state, next_seed;
    int hard;   /* errors that must be reported occur */
    int silent; /* lost, misdirected or flipped data may occur */
    unsigned nreads, nwrites, nfailed;
};

static int content_is(const unsigned char *m, uint32_t block, uint64_t seed)
{
    return seed ? filled(m, block * (uint64_t)SMALL, SMALL, seed) : zero(m, SMALL);
}

static const char *check_read(struct model *md, const struct flight *f, int rc)
{
    const struct model_block *b = &md->blocks[f->block];

    md->nreads++;
    if (rc < 0) {
        md->nfailed++;
        if (b->unknown || md->silent || (md->hard && rc == -EIO))
            return NULL;
        return "a read of good data failed with a soft fault only";
    }
    if (content_is(f->mem, f->block, b->good))
        return NULL;
    for (uint32_t i = 0; i < b->nmaybe; i++)
        if (content_is(f->mem, f->block, b->maybe[i]))
            return NULL;
    return "a read succeeded with bytes that were never there";
}

static const char *check_write(struct model *md, const struct flight *f, int rc)
{
    struct model_block *b = &md->blocks[f->block];

    md->nwrites++;
    if (rc == 0) {
        b->good = f->seed;
        b->nmaybe = 0;
        b->unknown = 0;
        return NULL;
    }
    md->nfailed++;
    b->unknown = 1;
    if (b->nmaybe == 64)
        return "the model's table is full";
    b->maybe[b->nmaybe++] = f->seed;
    return NULL;
}

static const char *land(struct model *md, struct flight *f, int rc)
{
    const char *wrong = f->write ? check_write(md, f, rc) : check_read(md, f, rc);

    md->blocks[f->block].busy = 0;
    f->token = 0;
    return wrong;
}

static const char *land_one(struct model *md)
{
    uint64_t tokens[NINFLIGHT];
    uint32_t index = 0, n = 0;
    int rc;

    for (uint32_t i = 0; i < NINFLIGHT; i++) {
        tokens[i] = md->flights[i].token;
        n += tokens[i] != 0;
    }
    if (!n)
        return NULL;
    rc = haul_store_wait_any(md->store, tokens, NINFLIGHT, &index);
    return land(md, &md->flights[index], rc);
}

static const char *take_off(struct model *md, struct flight *f)
{
    uint32_t block = (uint32_t)(next_random(&md->state) % NBLOCKS);
    struct haul_io io = {.extent = 1, .offset = block * (uint64_t)SMALL, .bytes = SMALL};

    if (md->blocks[block].busy)
        return NULL;
    f->block = block;
    f->write = io.write = (int)(next_random(&md->state) & 1);
    f->seed = f->write ? md->next_seed++ : 0;
    if (f->write)
        fill(f->mem, io.offset, SMALL, f->seed);
    else
        memset(f->mem, 0xa5, SMALL);
    io.buf = f->mem;
    if (haul_store_submit(md->store, &io, &f->token) < 0)
        return "submit failed";
    md->blocks[block].busy = 1;
    return NULL;
}

static const char *run_model(struct model *md)
{
    const char *wrong = NULL;

    for (unsigned step = 0; !wrong && step < NSTEPS; step++) {
        struct flight *f = &md->flights[next_random(&md->state) % NINFLIGHT];

        wrong = f->token ? land_one(md) : take_off(md, f);
    }
    for (unsigned i = 0; !wrong && i < NINFLIGHT; i++)
        wrong = land_one(md);
    /* Everything works again: what was acknowledged is there, what was lost can be written anew. */
    hl_fault_disarm();
    for (uint32_t b = 0; !wrong && b < NBLOCKS; b++) {
        struct flight f = {.block = b, .mem = md->flights[0].mem};

        wrong =
            check_read(md, &f, haul_store_read(md->store, 1, b * (uint64_t)SMALL, f.mem, SMALL));
        fill(f.mem, b * (uint64_t)SMALL, SMALL, 1);
        if (!wrong && haul_store_write(md->store, 1, b * (uint64_t)SMALL, f.mem, SMALL))
            wrong = "the store does not recover";
        memset(f.mem, 0, SMALL);
        if (!wrong && (haul_store_read(md->store, 1, b * (uint64_t)SMALL, f.mem, SMALL) ||
                       !content_is(f.mem, b, 1)))
            wrong = "the store does not recover";
    }
    return wrong;
}

/* Rates from the schedule's number: soft faults always, hard and silent ones in half of them each. */
static struct hl_fault_plan plan_of(unsigned schedule, uint64_t *state)
{
    struct hl_fault_plan p = {.seed = schedule * 1000003ull + 17, .align = 512};

    p.reorder = (int)(next_random(state) & 1);
    for (int k = HL_FAULT_SHORT_ALIGNED; k <= HL_FAULT_STALE; k++)
        p.rate[k] = (uint32_t)(next_random(state) % 90);
    p.rate[HL_FAULT_DELAY] *= 3;
    if (schedule & 1)
        for (int k = HL_FAULT_EIO; k <= HL_FAULT_TORN; k++)
            p.rate[k] = (uint32_t)(next_random(state) % 60);
    if (schedule & 2)
        for (int k = HL_FAULT_LOST; k <= HL_FAULT_FLIP; k++)
            p.rate[k] = (uint32_t)(next_random(state) % 40);
    return p;
}

static struct haul_store *open_model(const char *dir, const struct hl_method_ops *inner,
                                     int is_durable)
{
    struct haul_store_opts o = small_opts(&dir);
    struct haul_store *s = NULL;

    o.block_bytes = SMALL;
    o.capacity_bytes = NBLOCKS * SMALL;
    o.durable = is_durable;
    o.read_depth = 3;
    o.write_depth = 2;
    hl_fault_arm(&(struct hl_fault_plan){.inner = inner});
    MUST(open_store(&o, &s));
    MUST(haul_extent_create(s, 1, NBLOCKS * SMALL));
    return s;
}

/* One store serves many schedules: opening is slow, and what one leaves the next must stand. */
static void run_schedules(const char *dir, const struct hl_method_ops *inner, unsigned from,
                          unsigned to)
{
    struct haul_store *s = open_model(dir, inner, (int)(from / 50 & 1));
    struct model md = {.store = s};
    unsigned char *mem = memory(NINFLIGHT * SMALL);
    int64_t fds = hl_sys_live(HL_SYS_FD), blocks = hl_sys_live(HL_SYS_MEM);

    for (unsigned schedule = from; schedule < to; schedule++) {
        struct hl_fault_plan plan;
        const char *wrong;

        md = (struct model){.store = s, .state = schedule, .next_seed = 100};
        for (unsigned i = 0; i < NINFLIGHT; i++)
            md.flights[i].mem = mem + i * SMALL;
        for (unsigned b = 0; b < NBLOCKS; b++)
            md.blocks[b].good = schedule == from ? 0 : 1;
        plan = plan_of(schedule, &md.state);
        plan.inner = inner;
        md.hard = schedule & 1;
        md.silent = schedule & 2;
        hl_fault_arm(&plan);
        wrong = run_model(&md);
        cr_assert_null(wrong, "schedule %u: %s (%s)", schedule, wrong, haul_last_error());
        cr_assert(md.nreads + md.nwrites > 30, "schedule %u", schedule);
    }
    cr_assert_eq(hl_sys_live(HL_SYS_FD), fds);
    cr_assert_eq(hl_sys_live(HL_SYS_MEM), blocks);
    haul_store_close(s);
    free(mem);
}

Test(pager_model, no_schedule_of_faults_hands_out_a_wrong_byte)
{
    static const struct hl_method_ops *const inner[] = INNER_METHODS;
    unsigned ninner = sizeof inner / sizeof *inner;

    for (unsigned from = 0; from < NSCHEDULES; from += 50) {
        char dir[128];

        cr_assert(place_make(from / 50 / 2 % 2, dir));
        run_schedules(dir, inner[from / 100 % ninner], from, from + 50);
        place_remove(dir);
    }
}
