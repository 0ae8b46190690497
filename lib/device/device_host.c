/* device_host.c: the emulated device: options, the table of operations, open and close. */
#include "device_host.h"
#include "sys.h"
#include <inttypes.h>
#include <math.h>

static const char *host_name(const struct haul_device *dev)
{
    return "host (emulated)";
}

static void host_lane_stats(struct haul_device *dev, enum hl_device_lane lane,
                            struct hl_device_lane_stats *out)
{
    struct host_lane *l = &host_of(dev)->lane[lane];

    out->busy_ns = atomic_load_explicit(&l->busy_ns, memory_order_relaxed);
    out->bytes = atomic_load_explicit(&l->bytes, memory_order_relaxed);
}

/* Streams first: what they still run may use events and memory. */
static int host_close(struct haul_device *base)
{
    struct host_device *dev = host_of(base);
    unsigned nstreams = hl_device_host_streams_end(dev);
    unsigned nevents = hl_device_host_events_end(dev);
    uint64_t nallocs = dev->mem.nlive, bytes = dev->mem.used_bytes;

    for (struct host_stream *s = dev->closed, *next; s; s = next) {
        next = s->next;
        hl_sys_free(s);
    }
    hl_device_host_mem_end(&dev->mem);
    hl_sys_free(dev);
    if (nallocs || nstreams || nevents)
        return hl_fail(HAUL_E_STATE,
                       "device closed with %" PRIu64 " allocations (%" PRIu64 " bytes), %u streams "
                       "and %u events left: free what was opened on it first",
                       nallocs, bytes, nstreams, nevents);
    return 0;
}

static const struct hl_device_ops host_ops = {
    .name = host_name,
    .close = host_close,
    .mem_info = hl_device_host_mem_info,
    .alloc = hl_device_host_alloc,
    .free = hl_device_host_free,
    .stream_open = hl_device_host_stream_open,
    .stream_close = hl_device_host_stream_close,
    .stream_sync = hl_device_host_stream_sync,
    .stream_wait = hl_device_host_stream_wait,
    .event_open = hl_device_host_event_open,
    .event_close = hl_device_host_event_close,
    .event_record = hl_device_host_event_record,
    .event_query = hl_device_host_event_query,
    .event_sync = hl_device_host_event_sync,
    .event_time_ns = hl_device_host_event_time_ns,
    .copy_h2d = hl_device_host_copy_h2d,
    .copy_d2h = hl_device_host_copy_d2h,
    .copy_d2d = hl_device_host_copy_d2d,
    .launch = hl_device_host_launch,
    .call = hl_device_host_call,
    .convert = hl_device_host_convert,
    .accumulate = hl_device_host_accumulate,
    .sum = hl_device_host_sum,
    .sumsq = hl_device_host_sumsq,
    .fill = hl_device_host_fill,
    .optim = hl_device_host_optim,
    .lane_stats = host_lane_stats,
};

void haul_device_host_opts_init(struct haul_device_host_opts *opts)
{
    *opts = (struct haul_device_host_opts){.struct_size = sizeof *opts};
}

static int check_rate(const char *name, double rate)
{
    if (!isfinite(rate) || rate < 0)
        return hl_fail(-EINVAL, "%s is %g: give bytes per second, or 0 for as fast as memcpy", name,
                       rate);
    return 0;
}

static int check_opts(const struct haul_device_host_opts *opts)
{
    int rc;

    if (opts->struct_size != sizeof *opts)
        return hl_fail(HAUL_E_ABI,
                       "haul_device_host_opts: struct_size is %zu, this library knows %zu: call "
                       "haul_device_host_opts_init() first",
                       opts->struct_size, sizeof *opts);
    rc = check_rate("h2d_bytes_per_s", opts->h2d_bytes_per_s);
    return rc < 0 ? rc : check_rate("d2h_bytes_per_s", opts->d2h_bytes_per_s);
}

int haul_device_host_open(const struct haul_device_host_opts *opts, struct haul_device **out)
{
    struct haul_device_host_opts defaults;
    struct host_device *dev;
    void *p;
    int rc;

    if (!out)
        return hl_need("haul_device_host_open", "out", out);
    haul_device_host_opts_init(&defaults);
    if (!opts)
        opts = &defaults;
    rc = check_opts(opts);
    if (rc < 0)
        return rc;
    rc = hl_sys_alloc(sizeof *dev, &p);
    if (rc < 0)
        return hl_fail(rc, "no memory for the emulated device (%zu bytes)", sizeof *dev);
    dev = p;
    dev->base.ops = &host_ops;
    dev->base.in_host_memory = 1;
    dev->kernel_threads = opts->kernel_threads ? opts->kernel_threads : haul_optim_threads(1);
    dev->jitter_seed = opts->jitter_seed;
    dev->mem.cap_bytes = opts->mem_bytes ? opts->mem_bytes : UINT64_MAX;
    dev->h2d = (struct host_link){.bytes_per_s = opts->h2d_bytes_per_s,
                                  .latency_ns = opts->copy_latency_ns,
                                  .lane = &dev->lane[HL_DEVICE_H2D]};
    dev->d2h = (struct host_link){.bytes_per_s = opts->d2h_bytes_per_s,
                                  .latency_ns = opts->copy_latency_ns,
                                  .lane = &dev->lane[HL_DEVICE_D2H]};
    *out = &dev->base;
    return 0;
}

void hl_device_host_fail_nth(struct haul_device *dev, int64_t n)
{
    atomic_store(&host_of(dev)->fail_in, n);
}
