/* store_stats.c: what a store did. */
#include <string.h>
#include <time.h>

#include "clock.h"
#include "store.h"

void hl_meter_move(struct hl_meter *m, int by, uint64_t now_ns)
{
    uint64_t span_ns = now_ns - m->since_ns;

    if (m->inflight) {
        m->s.busy_ns += span_ns;
        m->depth_ns += span_ns * m->inflight;
        m->s.depth_ns[31 - __builtin_clz(m->inflight)] += span_ns;
    }
    m->since_ns = now_ns;
    m->inflight += (uint32_t)by;
}

static uint32_t bucket(uint64_t ns)
{
    uint64_t us = ns / 1000;
    uint32_t i = us ? 63 - (uint32_t)__builtin_clzll(us) : 0;

    return i < HAUL_LATENCY_BUCKETS ? i : HAUL_LATENCY_BUCKETS - 1;
}

void hl_meter_request(struct hl_meter *m, const struct hl_op *op, uint64_t now_ns)
{
    m->s.requests++;
    if (op->rc < 0)
        m->s.failed++;
    else
        m->s.bytes += op->bytes;
    m->s.latency[bucket(now_ns - op->begun_ns)]++;
}

static void snapshot(const struct hl_meter *m, struct haul_direction_stats *out)
{
    *out = m->s;
    out->mean_depth = m->s.busy_ns ? (double)m->depth_ns / (double)m->s.busy_ns : 0;
}

static int stat_on_loop(struct haul_store *s, void *arg)
{
    struct haul_store_stats *out = arg;
    uint64_t now_ns = hl_clock_ns();

    hl_meter_move(&s->read, 0, now_ns);
    hl_meter_move(&s->write, 0, now_ns);
    snapshot(&s->read, &out->read);
    snapshot(&s->write, &out->write);
    out->check_ns = s->check_ns;
    out->short_transfers = s->short_transfers;
    out->retries = s->retries;
    out->stale_completions = s->stale;
    out->checksum_errors = s->checksum_errors;
    out->written_ever_bytes = s->written_before + s->write.s.disk_bytes;
    return 0;
}

static uint64_t thread_cpu_ns(pthread_t thread)
{
    struct timespec ts;
    clockid_t clock;

    if (pthread_getcpuclockid(thread, &clock) || clock_gettime(clock, &ts))
        return 0;
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

int haul_store_stat(struct haul_store *store, struct haul_store_stats *stats)
{
    struct haul_store_stats now = {.struct_size = sizeof now};
    int rc = HL_GIVEN(store);

    rc = rc ? rc : HL_GIVEN(stats);
    if (rc < 0)
        return rc;
    if (stats->struct_size < sizeof now)
        return hl_fail(HAUL_E_ABI, "haul_store_stats.struct_size is %zu", stats->struct_size);
    rc = hl_store_run(store, stat_on_loop, &now);
    if (rc < 0)
        return rc;
    now.cpu_ns = thread_cpu_ns(store->thread);
    if (store->method->ops->cpu_ns)
        now.cpu_ns += store->method->ops->cpu_ns(store->method);
    now.struct_size = stats->struct_size;
    *stats = now;
    return 0;
}

static int info_on_loop(struct haul_store *s, void *arg)
{
    struct haul_store_info *out = arg;

    out->nextents = s->nextents;
    out->used_bytes = s->opts.capacity_bytes - hl_cells_free_count(s) * s->opts.block_bytes;
    out->direct = 1;
    for (uint32_t i = 0; i < s->ndirs; i++) {
        out->direct &= s->dirs[i].direct;
        out->file_bytes += s->dirs[i].file_bytes;
    }
    return 0;
}

int haul_store_get_info(struct haul_store *store, struct haul_store_info *info)
{
    struct haul_store_info now;
    int rc = HL_GIVEN(store);

    rc = rc ? rc : HL_GIVEN(info);
    if (rc < 0)
        return rc;
    now = (struct haul_store_info){.struct_size = info->struct_size,
                                   .method = store->method_ops->name,
                                   .method_note = store->method_note,
                                   .direct_note = store->direct_note,
                                   .fixed_buffers = store->fixed_buffers,
                                   .align_bytes = store->align,
                                   .mem_align_bytes = store->mem_align,
                                   .block_bytes = store->opts.block_bytes,
                                   .read_depth = store->opts.read_depth,
                                   .write_depth = store->opts.write_depth,
                                   .capacity_bytes = store->opts.capacity_bytes};
    if (info->struct_size < sizeof now)
        return hl_fail(HAUL_E_ABI, "haul_store_info.struct_size is %zu", info->struct_size);
    rc = hl_store_run(store, info_on_loop, &now);
    if (rc == 0)
        *info = now;
    return rc;
}
