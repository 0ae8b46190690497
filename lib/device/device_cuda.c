/* device_cuda.c: the CUDA back end: its table of operations, open and close. */
#include <inttypes.h>
#include <string.h>

#include "cuda_context.h"
#include "device_cuda.h"
#include "sys.h"

int hl_cuda_enter(struct cuda_device *dev)
{
    CUcontext current = NULL;
    int rc = HL_CU(&dev->drv, cuCtxGetCurrent, &current);

    if (rc < 0 || current == dev->ctx)
        return rc;
    rc = HL_CU(&dev->drv, cuCtxPushCurrent, dev->ctx);
    return rc < 0 ? rc : 1;
}

/* A pop can only fail when the context is lost, and then the next call says so. */
void hl_cuda_leave(struct cuda_device *dev, int entered)
{
    CUcontext popped;

    if (entered > 0)
        (void)dev->drv.cuCtxPopCurrent(&popped);
}

static const char *cuda_name(const struct haul_device *dev)
{
    return ((const struct cuda_device *)dev)->name;
}

static int cuda_numa_node(struct haul_device *dev)
{
    return cuda_of(dev)->numa_node;
}

static void free_device(struct cuda_device *dev)
{
    hl_sys_free(dev->mem.device.live);
    hl_sys_free(dev->mem.pinned.live);
    hl_sys_free(dev);
}

/* What open made, last first. The context stays until then: the trainer may share it. */
static void close_parts(struct cuda_device *dev)
{
    hl_cuda_lane_close(dev, &dev->d2h);
    hl_cuda_lane_close(dev, &dev->h2d);
    hl_cuda_anchor_close(dev);
    hl_cuda_kernels_close(dev);
}

static int cuda_close(struct haul_device *base)
{
    struct cuda_device *dev = cuda_of(base);
    int entered = hl_cuda_enter(dev);
    unsigned nstreams = hl_cuda_streams_end(dev), nevents = hl_cuda_events_end(dev);
    uint64_t bytes, nallocs = hl_cuda_mem_end(base, &bytes);

    hl_cuda_pinned_end(dev);
    close_parts(dev);
    hl_cuda_leave(dev, entered);
    (void)dev->drv.cuDevicePrimaryCtxRelease(dev->device);
    hl_cuda_driver_close(&dev->drv);
    free_device(dev);
    if (nallocs || nstreams || nevents)
        return hl_fail(HAUL_E_STATE,
                       "device closed with %" PRIu64 " allocations (%" PRIu64 " bytes), %u streams "
                       "and %u events left: free what was opened on it first",
                       nallocs, bytes, nstreams, nevents);
    return 0;
}

static const struct hl_device_ops cuda_ops = {
    .name = cuda_name,
    .close = cuda_close,
    .mem_info = hl_cuda_mem_info,
    .alloc = hl_cuda_alloc,
    .free = hl_cuda_free,
    .host_register = hl_cuda_host_register,
    .host_unregister = hl_cuda_host_unregister,
    .numa_node = cuda_numa_node,
    .stream_open = hl_cuda_stream_open,
    .stream_close = hl_cuda_stream_close,
    .stream_sync = hl_cuda_stream_sync,
    .stream_wait = hl_cuda_stream_wait,
    .event_open = hl_cuda_event_open,
    .event_close = hl_cuda_event_close,
    .event_record = hl_cuda_event_record,
    .event_query = hl_cuda_event_query,
    .event_sync = hl_cuda_event_sync,
    .event_time_ns = hl_cuda_event_time_ns,
    .copy_h2d = hl_cuda_copy_h2d,
    .copy_d2h = hl_cuda_copy_d2h,
    .copy_d2d = hl_cuda_copy_d2d,
    .launch = hl_cuda_launch,
    .call = hl_cuda_launch, /* no lane sees it there */
    .convert = hl_cuda_convert,
    .accumulate = hl_cuda_accumulate,
    .sum = hl_cuda_sum,
    .sumsq = hl_cuda_sumsq,
    .fill = hl_cuda_fill,
    .optim = hl_cuda_optim,
    .lane_stats = hl_cuda_lane_stats,
};

int hl_cuda_context_enter(struct haul_device *dev, int *ordinal)
{
    if (!dev || dev->ops != &cuda_ops)
        return hl_fail(HAUL_E_DEVICE, "%s is not a GPU of haul_device_cuda_open()",
                       haul_device_name(dev));
    if (ordinal)
        *ordinal = cuda_of(dev)->device;
    return hl_cuda_enter(cuda_of(dev));
}

void hl_cuda_context_leave(struct haul_device *dev, int entered)
{
    hl_cuda_leave(cuda_of(dev), entered);
}

void haul_device_cuda_opts_init(struct haul_device_cuda_opts *opts)
{
    *opts = (struct haul_device_cuda_opts){
        .struct_size = sizeof *opts, .ordinal = -1, .local_rank = -1};
}

static int check_opts(const struct haul_device_cuda_opts *opts)
{
    int ways = (opts->ordinal != -1) + (opts->local_rank != -1) + (opts->uuid != NULL);

    if (opts->struct_size != sizeof *opts)
        return hl_fail(HAUL_E_ABI,
                       "haul_device_cuda_opts: struct_size is %zu, this library knows %zu: call "
                       "haul_device_cuda_opts_init() first",
                       opts->struct_size, sizeof *opts);
    if (ways > 1)
        return hl_fail(-EINVAL, "haul_device_cuda_opts: choose by ordinal, local_rank or uuid, "
                                "not by more than one of them");
    return 0;
}

static int check_capability(struct cuda_device *dev)
{
    int major = 0, rc = HL_CU(&dev->drv, cuDeviceGetAttribute, &major,
                              CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, dev->device);

    if (rc == 0 && major < 8)
        return hl_fail(HAUL_E_DEVICE,
                       "%s has compute capability %d.x; haul's kernels need 8.0 or newer "
                       "(Ampere and later)",
                       dev->name, major);
    return rc;
}

static int describe(struct cuda_device *dev, int ordinal)
{
    int rc;

    if ((rc = HL_CU(&dev->drv, cuDeviceGet, &dev->device, ordinal)) < 0 ||
        (rc = HL_CU(&dev->drv, cuDeviceGetName, dev->name, sizeof dev->name, dev->device)) < 0 ||
        (rc = HL_CU(&dev->drv, cuDeviceGetPCIBusId, dev->pci, sizeof dev->pci, dev->device)) < 0)
        return rc;
    dev->numa_node = hl_cuda_numa_node(dev->pci);
    return check_capability(dev);
}

/* In the context. */
static int open_parts(struct cuda_device *dev)
{
    int rc = HL_CU(&dev->drv, cuCtxGetStreamPriorityRange, &dev->least_priority,
                   &dev->greatest_priority);

    if (rc < 0 || (rc = hl_cuda_kernels_open(dev)) < 0 || (rc = hl_cuda_anchor_open(dev)) < 0 ||
        (rc = hl_cuda_lane_open(dev, &dev->h2d)) < 0 ||
        (rc = hl_cuda_lane_open(dev, &dev->d2h)) < 0)
        close_parts(dev);
    return rc;
}

static int open_in_context(struct cuda_device *dev)
{
    int entered = hl_cuda_enter(dev), rc;

    if (entered < 0)
        return entered;
    rc = open_parts(dev);
    hl_cuda_leave(dev, entered);
    return rc;
}

static int open_device(struct cuda_device *dev, const struct haul_device_cuda_opts *opts)
{
    int ordinal = 0, rc = hl_cuda_driver_open(&dev->drv);

    if (rc < 0)
        return rc;
    if ((rc = hl_cuda_choose(&dev->drv, opts, &ordinal)) < 0 || (rc = describe(dev, ordinal)) < 0 ||
        (rc = HL_CU(&dev->drv, cuDevicePrimaryCtxRetain, &dev->ctx, dev->device)) < 0)
        goto close_driver;
    rc = open_in_context(dev);
    if (rc == 0)
        return 0;
    (void)dev->drv.cuDevicePrimaryCtxRelease(dev->device);
close_driver:
    hl_cuda_driver_close(&dev->drv);
    return rc;
}

int haul_device_cuda_open(const struct haul_device_cuda_opts *opts, struct haul_device **out)
{
    struct haul_device_cuda_opts defaults;
    struct cuda_device *dev;
    void *p;
    int rc;

    if (!out)
        return hl_need("haul_device_cuda_open", "out", out);
    haul_device_cuda_opts_init(&defaults);
    if (!opts)
        opts = &defaults;
    if ((rc = check_opts(opts)) < 0)
        return rc;
    if ((rc = hl_sys_alloc(sizeof *dev, &p)) < 0)
        return hl_fail(rc, "no memory for a CUDA device's state (%zu bytes)", sizeof *dev);
    dev = p;
    dev->base.ops = &cuda_ops;
    dev->mem.cap_bytes = opts->mem_bytes ? opts->mem_bytes : UINT64_MAX;
    rc = open_device(dev, opts);
    if (rc < 0) {
        free_device(dev);
        return rc;
    }
    *out = &dev->base;
    return 0;
}
