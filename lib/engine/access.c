/* access.c: reaching single values: fill, read, write, digest. Everything is quiescent meanwhile. */
#include <string.h>

#include "arith.h"
#include "engine_state.h"

/* Elements handled at a time. Five arrays of them fit the bounce buffer. */
#define CHUNK UINT64_C(32768)

/* The bounce buffer, cut up. */
struct scratch {
    float *p, *m, *v, *value;
    uint16_t *hi, *lo;
};

static struct scratch scratch_of(const struct haul_engine *e)
{
    char *b = e->bounce;

    return (struct scratch){.p = (float *)b,
                            .m = (float *)(b + CHUNK * 4),
                            .v = (float *)(b + CHUNK * 8),
                            .value = (float *)(b + CHUNK * 12),
                            .hi = (uint16_t *)(b + CHUNK * 16),
                            .lo = (uint16_t *)(b + CHUNK * 18)};
}

static int pull(struct haul_engine *e, bool on_device, void *dst, const void *src, uint64_t bytes)
{
    if (!on_device) {
        memcpy(dst, src, bytes);
        return 0;
    }
    int rc = e->ops->copy_d2h(e->dev, dst, src, bytes, e->d2h);
    return rc < 0 ? rc : e->ops->stream_sync(e->dev, e->d2h);
}

static int push(struct haul_engine *e, bool on_device, void *dst, const void *src, uint64_t bytes)
{
    if (!on_device) {
        memcpy(dst, src, bytes);
        return 0;
    }
    int rc = e->ops->copy_h2d(e->dev, dst, src, bytes, e->h2d);
    return rc < 0 ? rc : e->ops->stream_sync(e->dev, e->h2d);
}

/* A piece of a tensor: n <= CHUNK elements of its span's shard. */
struct piece {
    struct haul_unit *unit;
    enum hl_span_kind span;
    uint64_t at, n;
};

static struct piece piece_of(struct haul_unit *u, uint32_t tensor, uint64_t first, uint64_t n)
{
    const struct hl_place *pl = &u->places[tensor];

    return (struct piece){u, pl->span, pl->first_elem + first, n < CHUNK ? n : CHUNK};
}

static bool is_split(const struct piece *pc)
{
    return pc->span == HL_TRAIN16 && pc->unit->engine->opts.master == HAUL_MASTER_SPLIT;
}

static bool is_trained(const struct piece *pc)
{
    return pc->span < HL_NTRAIN;
}

/* The 16-bit halves of a split master, wherever they rest. */
static char *hi_at(const struct piece *pc, bool *on_device)
{
    struct haul_unit *u = pc->unit;

    *on_device = !u->hi && !hl_engine_params_on_host(u->engine);
    return (u->hi ? (char *)u->hi : u->rest_params[pc->span]) + pc->at * 2;
}

static int read_split(const struct piece *pc, float *out)
{
    struct haul_engine *e = pc->unit->engine;
    struct scratch s = scratch_of(e);
    bool hi_device;
    const char *hi = hi_at(pc, &hi_device);
    int rc = pull(e, hi_device, s.hi, hi, pc->n * 2);

    if (rc == 0)
        rc = pull(e, hl_engine_records_on_device(e), s.lo,
                  (char *)pc->unit->record[pc->span].master + pc->at * 2, pc->n * 2);
    if (rc == 0)
        hl_arith_join(out, s.hi, s.lo, pc->n, 1);
    return rc;
}

static int read_param(const struct piece *pc, float *out)
{
    struct haul_unit *u = pc->unit;
    struct haul_engine *e = u->engine;
    struct scratch s = scratch_of(e);
    bool device = !hl_engine_params_on_host(e);
    uint64_t each = hl_span_param_bytes(pc->span);
    const char *src = u->rest_params[pc->span] + pc->at * each;

    if (each == 4)
        return pull(e, device, out, src, pc->n * 4);
    int rc = pull(e, device, s.hi, src, pc->n * 2);
    if (rc == 0)
        hl_arith_convert(out, HAUL_FP32, s.hi, e->dtype16, pc->n, 1);
    return rc;
}

static int read_piece(const struct piece *pc, float *out)
{
    struct haul_engine *e = pc->unit->engine;

    if (!is_trained(pc))
        return read_param(pc, out);
    if (is_split(pc))
        return read_split(pc, out);
    return pull(e, hl_engine_records_on_device(e), out,
                (char *)pc->unit->record[pc->span].master + pc->at * 4, pc->n * 4);
}

/* The published parameter, from FP32 values. */
static int write_param(const struct piece *pc, const float *values)
{
    struct haul_unit *u = pc->unit;
    struct haul_engine *e = u->engine;
    struct scratch s = scratch_of(e);
    bool device = !hl_engine_params_on_host(e);
    uint64_t each = hl_span_param_bytes(pc->span);
    char *dst = u->rest_params[pc->span] + pc->at * each;

    if (each == 4)
        return push(e, device, dst, values, pc->n * 4);
    hl_arith_convert(s.hi, e->dtype16, values, HAUL_FP32, pc->n, 1);
    int rc = push(e, device, dst, s.hi, pc->n * 2);
    if (rc == 0 && u->hi && is_split(pc))
        memcpy(u->hi + pc->at, s.hi, pc->n * 2);
    return rc;
}

static int write_master(const struct piece *pc, const float *values)
{
    struct haul_engine *e = pc->unit->engine;
    struct scratch s = scratch_of(e);
    bool device = hl_engine_records_on_device(e);
    char *master = pc->unit->record[pc->span].master;

    if (!is_split(pc))
        return push(e, device, master + pc->at * 4, values, pc->n * 4);
    hl_arith_split(s.hi, s.lo, values, pc->n, 1);
    return push(e, device, master + pc->at * 2, s.lo, pc->n * 2);
}

static int write_piece(const struct piece *pc, float *values)
{
    for (uint64_t i = 0; i < pc->n; i++)
        values[i] = hl_float_canon(values[i]);
    int rc = is_trained(pc) ? write_master(pc, values) : 0;
    return rc < 0 ? rc : write_param(pc, values);
}

/* Frames hold copies of what is about to change. */
static void forget_frames(struct haul_engine *e)
{
    hl_spin_lock(&e->lock);
    for (uint32_t i = 0; i < e->nframes; i++) {
        if (e->frame[i].pinned)
            e->wframe[i].stale = 1;
        else
            e->frame[i].unit = -1, e->wframe[i].ready = 0;
    }
    hl_spin_unlock(&e->lock);
}

/* All updates done, nothing held, and no copy reading what follows. */
static int quiesce(struct haul_engine *e)
{
    int rc = haul_engine_sync(e);

    if (rc < 0)
        return rc;
    if (e->nheld)
        return hl_fail(HAUL_E_STATE, "engine: %u units are held; release them first", e->nheld);
    hl_spin_lock(&e->lock);
    e->pos = HL_NEVER; /* nothing to prefetch until resume() */
    hl_spin_unlock(&e->lock);
    for (;;) {
        uint32_t seen = hl_gate_look(&e->gate);
        bool filling = false;
        hl_spin_lock(&e->lock);
        for (uint32_t i = 0; i < e->nframes; i++)
            filling |= e->frame[i].pinned;
        hl_spin_unlock(&e->lock);
        if (!filling)
            break;
        if ((rc = hl_engine_check(e)) < 0)
            return rc;
        hl_gate_sleep(&e->gate, seen);
    }
    return e->ops->stream_sync(e->dev, e->h2d);
}

static void resume(struct haul_engine *e, uint64_t pos)
{
    hl_spin_lock(&e->lock);
    e->pos = pos;
    hl_spin_unlock(&e->lock);
    hl_gate_wake(&e->gate);
}

static int check_range(const struct haul_unit *u, uint32_t tensor, uint64_t first, uint64_t n)
{
    if (!u->engine->built)
        return hl_fail(HAUL_E_STATE, "unit %s: tensors can be reached after build", u->name);
    if (tensor >= u->ntensors)
        return hl_fail(-EINVAL, "unit %s: tensor %u of %u", u->name, tensor, u->ntensors);
    uint64_t elems = u->places[tensor].elems;
    if (first > elems || n > elems - first)
        return hl_fail(-EINVAL, "unit %s, tensor %s: elements %llu + %llu of %llu", u->name,
                       u->tensors[tensor].name, (unsigned long long)first, (unsigned long long)n,
                       (unsigned long long)elems);
    return 0;
}

int haul_tensor_read(struct haul_unit *u, uint32_t tensor, uint64_t first, uint64_t n, float *out)
{
    uint64_t pos = u->engine->pos;
    int rc = check_range(u, tensor, first, n);

    if (rc == 0)
        rc = quiesce(u->engine);
    for (uint64_t done = 0; rc == 0 && done < n;) {
        struct piece pc = piece_of(u, tensor, first + done, n - done);
        rc = read_piece(&pc, out + done);
        done += pc.n;
    }
    resume(u->engine, pos);
    return rc;
}

int haul_tensor_write(struct haul_unit *u, uint32_t tensor, uint64_t first, uint64_t n,
                      const float *values)
{
    struct haul_engine *e = u->engine;
    uint64_t pos = e->pos;
    int rc = check_range(u, tensor, first, n);

    if (rc == 0)
        rc = quiesce(e);
    if (rc == 0)
        forget_frames(e);
    for (uint64_t done = 0; rc == 0 && done < n;) {
        struct piece pc = piece_of(u, tensor, first + done, n - done);
        float *value = scratch_of(e).value;
        memcpy(value, values + done, pc.n * sizeof *value);
        rc = write_piece(&pc, value);
        done += pc.n;
    }
    resume(e, pos);
    return rc;
}

static int zero_moments(const struct piece *pc)
{
    struct haul_engine *e = pc->unit->engine;
    struct scratch s = scratch_of(e);
    struct hl_record *r = &pc->unit->record[pc->span];
    bool device = hl_engine_records_on_device(e);

    if (!is_trained(pc))
        return 0;
    memset(s.m, 0, pc->n * sizeof *s.m);
    int rc = push(e, device, r->m + pc->at, s.m, pc->n * 4);
    return rc < 0 ? rc : push(e, device, r->v + pc->at, s.m, pc->n * 4);
}

static int fill_tensor(struct haul_unit *u, uint32_t tensor, haul_fill_fn fn, void *user)
{
    uint64_t n = u->places[tensor].elems;
    float *value = scratch_of(u->engine).value;
    int rc = 0;

    for (uint64_t done = 0; rc == 0 && done < n;) {
        struct piece pc = piece_of(u, tensor, done, n - done);
        rc = fn(user, u->name, tensor, done, pc.n, value);
        if (rc < 0)
            return hl_fail(rc, "fill: the callback failed on unit %s, tensor %s, element %llu",
                           u->name, u->tensors[tensor].name, (unsigned long long)done);
        rc = write_piece(&pc, value);
        if (rc == 0)
            rc = zero_moments(&pc);
        done += pc.n;
    }
    return rc;
}

int haul_engine_fill(struct haul_engine *e, haul_fill_fn fn, void *user)
{
    int rc;

    if (!e->built)
        return hl_fail(HAUL_E_STATE, "fill: the engine is not built");
    rc = quiesce(e);
    if (rc == 0)
        forget_frames(e);
    for (uint32_t i = 0; rc == 0 && i < e->nunits; i++) {
        struct haul_unit *u = e->units[i];
        for (uint32_t t = 0; rc == 0 && t < u->ntensors; t++)
            rc = fill_tensor(u, t, fn, user);
        u->nsteps = 0;
    }
    resume(e, 0);
    return rc;
}

/* ---- digest ---- */

/* The finalizer of splitmix64 (Steele, Lea & Flood 2014): a bijection that spreads every bit. */
static uint64_t mix64(uint64_t x)
{
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

static uint64_t mix(uint64_t unit, uint64_t i, uint32_t p, uint32_t m, uint32_t v)
{
    uint64_t x = mix64((unit + 1) * UINT64_C(0x9e3779b97f4a7c15));

    x = mix64(x + i);
    x = mix64(x ^ ((uint64_t)m << 32 | p));
    return mix64(x + v);
}

static int digest_piece(const struct piece *pc, uint64_t logical, uint64_t *sum)
{
    struct haul_engine *e = pc->unit->engine;
    struct scratch s = scratch_of(e);
    const struct hl_record *r = is_trained(pc) ? &pc->unit->record[pc->span] : NULL;
    bool device = hl_engine_records_on_device(e);
    int rc = read_piece(pc, s.p);

    if (rc == 0 && r)
        rc = pull(e, device, s.m, r->m + pc->at, pc->n * 4);
    if (rc == 0 && r)
        rc = pull(e, device, s.v, r->v + pc->at, pc->n * 4);
    for (uint64_t i = 0; rc == 0 && i < pc->n; i++)
        *sum += mix(pc->unit->index, logical + i, hl_float_bits(s.p[i]),
                    r ? hl_float_bits(s.m[i]) : 0, r ? hl_float_bits(s.v[i]) : 0);
    return rc;
}

int haul_engine_digest(struct haul_engine *e, uint64_t *out)
{
    uint64_t sum = 0, pos = e->pos;
    int rc;

    if (!e->built)
        return hl_fail(HAUL_E_STATE, "digest: the engine is not built");
    rc = quiesce(e);
    for (uint32_t i = 0; rc == 0 && i < e->nunits; i++) {
        struct haul_unit *u = e->units[i];
        for (uint32_t t = 0; t < u->ntensors; t++)
            for (uint64_t done = 0; rc == 0 && done < u->places[t].elems;) {
                struct piece pc = piece_of(u, t, done, u->places[t].elems - done);
                rc = digest_piece(&pc, u->places[t].logical_elem + done, &sum);
                done += pc.n;
            }
    }
    resume(e, pos);
    if (rc == 0)
        *out = sum;
    return rc;
}
