/* access.c: reaching single values: read, write. Everything is quiescent meanwhile. */
#include <string.h>

#include "access.h"
#include "arith.h"

static struct hl_scratch scratch_at(char *b)
{
    return (struct hl_scratch){.p = (float *)b,
                               .m = (float *)(b + HL_PIECE_ELEMS * 4),
                               .v = (float *)(b + HL_PIECE_ELEMS * 8),
                               .value = (float *)(b + HL_PIECE_ELEMS * 12),
                               .hi = (uint16_t *)(b + HL_PIECE_ELEMS * 16),
                               .lo = (uint16_t *)(b + HL_PIECE_ELEMS * 18)};
}

static struct hl_scratch scratch_of(const struct haul_engine *e)
{
    return scratch_at(e->bounce);
}

struct hl_scratch hl_scratch_of(const struct haul_engine *e)
{
    return scratch_of(e);
}

/* Who reads: the trainer's thread while everything stands still, or a snapshot behind training, which has
 * memory and a stream of its own. */
struct reach {
    bool behind;
    struct hl_scratch s;
    void *d2h;
};

static struct reach reach_of(const struct haul_engine *e, bool behind)
{
    return behind ? (struct reach){true, scratch_at(e->snap.bounce), e->snap.stream}
                  : (struct reach){false, scratch_of(e), e->d2h};
}

static int pull(const struct reach *r, const struct haul_unit *u, bool on_device, void *dst,
                const void *src, uint64_t bytes)
{
    struct haul_engine *e = u->engine;
    int rc;

    if (!on_device) {
        memcpy(dst, src, bytes);
        return 0;
    }
    rc = r->behind ? e->ops->stream_wait(e->dev, r->d2h, u->published) : 0;
    if (rc == 0)
        rc = e->ops->copy_d2h(e->dev, dst, src, bytes, r->d2h);
    return rc < 0 ? rc : e->ops->stream_sync(e->dev, r->d2h);
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

static bool is_trained(const struct hl_piece *pc)
{
    return pc->span < HL_NTRAIN;
}

/* Cut a piece where range r begins or ends; whether what is left lies in it. */
static bool end_at(struct hl_piece *pc, const struct hl_range *r)
{
    uint64_t end = r->first + r->elems;
    bool in = pc->at >= r->first && pc->at < end;
    uint64_t left = in ? end - pc->at : pc->at < r->first ? r->first - pc->at : pc->n;

    pc->n = pc->n < left ? pc->n : left;
    return in;
}

struct hl_piece hl_piece_of(struct haul_unit *u, uint32_t tensor, uint64_t first, uint64_t n)
{
    const struct hl_place *pl = &u->places[tensor];
    struct hl_piece pc = {.unit = u,
                          .span = pl->span,
                          .at = pl->first_elem + first,
                          .n = n < HL_PIECE_ELEMS ? n : HL_PIECE_ELEMS};

    pc.mine = end_at(&pc, &u->shard[pc.span]);
    pc.own = pc.mine || u->own[pc.span].elems == u->layout.span[pc.span].elems;
    pc.rest = pc.mine || u->rest[pc.span].elems == u->layout.span[pc.span].elems;
    if (u->record_paged && is_trained(&pc) && pc.own) {
        struct hl_chunk_part part[HL_NTRAIN];
        uint64_t at = pc.at - u->own[pc.span].first;
        pc.chunk = hl_chunk_of(&u->ck, pc.span, at);
        hl_chunk_parts(&u->ck, pc.chunk, part);
        uint64_t left = part[pc.span].first + part[pc.span].n - at;
        pc.n = pc.n < left ? pc.n : left;
    }
    return pc;
}

/* ---- where a piece is ---- */

/* Its part of the record; the master is NULL where the parameter is the master. */
static int find_record(const struct reach *reach, const struct hl_piece *pc, bool write,
                       struct hl_record *out)
{
    struct haul_unit *u = pc->unit;
    uint64_t each = hl_record_master_bytes(u, pc->span), at = pc->at - u->own[pc->span].first;
    struct hl_record r = u->record[pc->span];

    if (u->record_paged) {
        struct hl_chunk_part part[HL_NTRAIN];
        char *mem = reach->behind ? u->engine->snap.chunk : u->engine->rslot[0].mem;
        int rc =
            reach->behind ? hl_snapshot_chunk(u, pc->chunk) : hl_chunk_at_hand(u, pc->chunk, write);
        if (rc < 0)
            return rc;
        hl_chunk_parts(&u->ck, pc->chunk, part);
        at -= part[pc->span].first;
        r.master = mem + part[pc->span].master;
        r.m = (float *)(mem + part[pc->span].m);
        r.v = (float *)(mem + part[pc->span].v);
    }
    out->master = each ? (char *)r.master + at * each : NULL;
    out->m = r.m + at;
    out->v = r.v + at;
    return 0;
}

static int find_param(const struct reach *reach, const struct hl_piece *pc, bool write, char **out)
{
    struct haul_unit *u = pc->unit;
    uint64_t at = (pc->at - u->rest[pc->span].first) * hl_span_param_bytes(pc->span);

    if (u->param_paged && reach->behind)
        return hl_snapshot_params(u, hl_rest_span_offset(u, pc->span) + at,
                                  pc->n * hl_span_param_bytes(pc->span), out);
    if (u->param_paged) {
        int rc = hl_params_at_hand(u, write);
        *out = u->engine->pslot[0].mem + hl_rest_span_offset(u, pc->span) + at;
        return rc;
    }
    *out = u->rest_params[pc->span] + at;
    return 0;
}

/* ---- reading ---- */

static int read_param(const struct reach *r, const struct hl_piece *pc, float *out)
{
    struct haul_unit *u = pc->unit;
    bool device = !hl_unit_params_on_host(u);
    char *src;
    int rc = find_param(r, pc, false, &src);

    if (rc < 0)
        return rc;
    if (hl_span_param_bytes(pc->span) == 4)
        return pull(r, u, device, out, src, pc->n * 4);
    rc = pull(r, u, device, r->s.hi, src, pc->n * 2);
    if (rc == 0)
        hl_arith_convert(out, HAUL_FP32, r->s.hi, u->engine->dtype16, pc->n, 1);
    return rc;
}

static int read_split(const struct reach *r, const struct hl_piece *pc, const uint16_t *lo,
                      float *out)
{
    struct haul_unit *u = pc->unit;
    char *hi = NULL;
    int rc = u->hi ? 0 : find_param(r, pc, false, &hi);

    if (rc == 0 && u->hi)
        memcpy(r->s.hi, u->hi + (pc->at - u->own[pc->span].first), pc->n * 2);
    else if (rc == 0)
        rc = pull(r, u, !hl_unit_params_on_host(u), r->s.hi, hi, pc->n * 2);
    if (rc == 0)
        rc = pull(r, u, hl_unit_records_on_device(u), r->s.lo, lo, pc->n * 2);
    if (rc == 0)
        hl_arith_join(out, r->s.hi, r->s.lo, pc->n, 1);
    return rc;
}

static int read_values(const struct reach *reach, const struct hl_piece *pc, float *out)
{
    struct hl_record r;

    if (!is_trained(pc))
        return read_param(reach, pc, out);
    int rc = find_record(reach, pc, false, &r);
    if (rc < 0)
        return rc;
    if (!r.master)
        return read_param(reach, pc, out);
    if (hl_unit_split(pc->unit, pc->span))
        return read_split(reach, pc, r.master, out);
    return pull(reach, pc->unit, hl_unit_records_on_device(pc->unit), out, r.master, pc->n * 4);
}

static int read_moments(const struct reach *reach, const struct hl_piece *pc, float *m, float *v)
{
    bool device = hl_unit_records_on_device(pc->unit);
    struct hl_record r;

    if (!is_trained(pc)) {
        memset(m, 0, pc->n * sizeof *m);
        memset(v, 0, pc->n * sizeof *v);
        return 0;
    }
    int rc = find_record(reach, pc, false, &r);
    if (rc == 0)
        rc = pull(reach, pc->unit, device, m, r.m, pc->n * 4);
    return rc < 0 ? rc : pull(reach, pc->unit, device, v, r.v, pc->n * 4);
}

int hl_piece_read(const struct hl_piece *pc, float *out)
{
    struct reach r = reach_of(pc->unit->engine, false);

    return read_values(&r, pc, out);
}

int hl_piece_read_moments(const struct hl_piece *pc, float *m, float *v)
{
    struct reach r = reach_of(pc->unit->engine, false);

    return read_moments(&r, pc, m, v);
}

int hl_piece_read_behind(const struct hl_piece *pc, float *p, float *m, float *v)
{
    struct reach r = reach_of(pc->unit->engine, true);
    int rc = read_values(&r, pc, p);

    return rc < 0 ? rc : read_moments(&r, pc, m, v);
}

int hl_piece_read_rest(const struct hl_piece *pc, bool behind, float *out)
{
    const struct haul_unit *u = pc->unit;
    struct reach r = reach_of(u->engine, behind);

    if (!u->hi || pc->span != HL_TRAIN16)
        return read_param(&r, pc, out);
    hl_arith_convert(out, HAUL_FP32, u->hi + (pc->at - u->own[pc->span].first), u->engine->dtype16,
                     pc->n, 1);
    return 0;
}

/* ---- writing ---- */

static int write_param(const struct hl_piece *pc, const float *values)
{
    struct haul_unit *u = pc->unit;
    struct haul_engine *e = u->engine;
    struct hl_scratch s = scratch_of(e);
    bool device = !hl_unit_params_on_host(u);
    char *dst;
    struct reach r = reach_of(e, false);
    int rc = find_param(&r, pc, true, &dst);

    if (rc < 0)
        return rc;
    if (hl_span_param_bytes(pc->span) == 4)
        return push(e, device, dst, values, pc->n * 4);
    hl_arith_convert(s.hi, e->dtype16, values, HAUL_FP32, pc->n, 1);
    rc = push(e, device, dst, s.hi, pc->n * 2);
    if (rc == 0 && u->hi && pc->own && pc->span == HL_TRAIN16)
        memcpy(u->hi + (pc->at - u->own[pc->span].first), s.hi, pc->n * 2);
    return rc;
}

static int write_master(const struct hl_piece *pc, const float *values)
{
    struct haul_engine *e = pc->unit->engine;
    struct hl_scratch s = scratch_of(e);
    bool device = hl_unit_records_on_device(pc->unit);
    struct reach reach = reach_of(e, false);
    struct hl_record r;
    int rc = find_record(&reach, pc, true, &r);

    if (rc < 0 || !r.master)
        return rc;
    if (!hl_unit_split(pc->unit, pc->span))
        return push(e, device, r.master, values, pc->n * 4);
    hl_arith_split(s.hi, s.lo, values, pc->n, 1);
    return push(e, device, r.master, s.lo, pc->n * 2);
}

int hl_piece_write(const struct hl_piece *pc, float *values)
{
    for (uint64_t i = 0; i < pc->n; i++)
        values[i] = hl_float_canon(values[i]);
    int rc = is_trained(pc) && pc->own ? write_master(pc, values) : 0;
    return rc < 0 || !pc->rest ? rc : write_param(pc, values);
}

int hl_piece_write_rest(const struct hl_piece *pc, float *values)
{
    for (uint64_t i = 0; i < pc->n; i++)
        values[i] = hl_float_canon(values[i]);
    return pc->rest ? write_param(pc, values) : 0;
}

int hl_piece_write_moments(const struct hl_piece *pc, const float *m, const float *v)
{
    struct haul_engine *e = pc->unit->engine;
    bool device = hl_unit_records_on_device(pc->unit);
    struct reach reach = reach_of(e, false);
    struct hl_record r;

    if (!is_trained(pc) || !pc->own)
        return 0;
    int rc = find_record(&reach, pc, true, &r);
    if (rc == 0)
        rc = push(e, device, r.m, m, pc->n * 4);
    return rc < 0 ? rc : push(e, device, r.v, v, pc->n * 4);
}

/* ---- the public calls ---- */

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

/* The end of an access: the first error, and everything runs on. */
static int finish(struct haul_engine *e, uint64_t pos, int rc)
{
    int rc_resume = hl_engine_resume(e, pos);

    return rc < 0 ? rc : rc_resume;
}

/* n values at most HL_PIECE_ELEMS; those of other ranks become 0. */
static int read_mine(struct haul_unit *u, uint32_t tensor, uint64_t first, uint64_t n, float *out)
{
    int rc = 0;

    for (uint64_t done = 0; rc == 0 && done < n;) {
        struct hl_piece pc = hl_piece_of(u, tensor, first + done, n - done);
        if (pc.mine)
            rc = hl_piece_read(&pc, out + done);
        else
            memset(out + done, 0, pc.n * sizeof *out);
        done += pc.n;
    }
    return rc;
}

/* Each value is one rank's and the others' zero: the sum of the bits is the value. rc: of this rank's part;
 * an error on one rank ends the call on all. */
static int share(struct haul_engine *e, float *value, uint64_t n, int rc)
{
    uint64_t *bits = (uint64_t *)(void *)scratch_of(e).p; /* and m */

    if (rc < 0)
        return hl_ranks_failed(e, rc);
    for (uint64_t i = 0; i < n; i++)
        bits[i] = hl_float_bits(value[i]);
    rc = hl_comm_all_reduce(e->comm, e->comm_counts, HAUL_COMM_SUM_U64, bits, n);
    if (rc < 0)
        return hl_ranks_failed(e, rc);
    for (uint64_t i = 0; i < n; i++) {
        uint32_t word = (uint32_t)bits[i];
        memcpy(&value[i], &word, sizeof word);
    }
    return 0;
}

int hl_check_not_held(const struct haul_engine *e)
{
    return e->nheld
               ? hl_fail(HAUL_E_STATE, "engine: %u units are held; release them first", e->nheld)
               : 0;
}

/* All ranks come with the same range of the same tensor. */
static int enter(struct haul_unit *u, const char *call, uint32_t tensor, uint64_t first, uint64_t n,
                 int rc)
{
    const uint64_t args[] = {u->index, tensor, first, n};

    if (rc == 0)
        rc = hl_check_not_held(u->engine);
    return hl_ranks_enter(u->engine, call, hl_hash(HL_HASH_START, args, sizeof args), rc);
}

int haul_tensor_read(struct haul_unit *u, uint32_t tensor, uint64_t first, uint64_t n, float *out)
{
    int rc;

    if ((rc = hl_need("haul_tensor_read", "unit", u)) < 0)
        return rc;
    struct haul_engine *e = u->engine;
    rc = check_range(u, tensor, first, n);
    if (rc == 0 && n)
        rc = hl_need("haul_tensor_read", "out", out);
    if (!e->built || (rc = enter(u, "haul_tensor_read", tensor, first, n, rc)) < 0)
        return rc;
    uint64_t pos = e->pos;
    rc = hl_engine_quiesce(e);
    for (uint64_t done = 0; rc == 0 && done < n; done += HL_PIECE_ELEMS) {
        uint64_t some = n - done < HL_PIECE_ELEMS ? n - done : HL_PIECE_ELEMS;
        float *value = e->comm ? scratch_of(e).value : out + done;
        rc = read_mine(u, tensor, first + done, some, value);
        if (e->comm && (rc = share(e, value, some, rc)) == 0)
            memcpy(out + done, value, some * sizeof *value);
    }
    return finish(e, pos, rc);
}

int haul_tensor_write(struct haul_unit *u, uint32_t tensor, uint64_t first, uint64_t n,
                      const float *values)
{
    int rc;

    if ((rc = hl_need("haul_tensor_write", "unit", u)) < 0)
        return rc;
    struct haul_engine *e = u->engine;
    rc = check_range(u, tensor, first, n);
    if (rc == 0 && n)
        rc = hl_need("haul_tensor_write", "values", values);
    if (!e->built || (rc = enter(u, "haul_tensor_write", tensor, first, n, rc)) < 0)
        return rc;
    uint64_t pos = e->pos;
    rc = hl_engine_quiesce(e);
    for (uint64_t done = 0; rc == 0 && done < n;) {
        struct hl_piece pc = hl_piece_of(u, tensor, first + done, n - done);
        float *value = scratch_of(e).value;
        memcpy(value, values + done, pc.n * sizeof *value);
        rc = hl_piece_write(&pc, value);
        done += pc.n;
    }
    rc = finish(e, pos, rc);
    return hl_ranks_leave(e, "haul_tensor_write", rc);
}
