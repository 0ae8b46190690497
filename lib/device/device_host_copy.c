/* device_host_copy.c: copies and host functions of the emulated device. */
#include "clock.h"
#include "device_host.h"
#include <string.h>

static int run_link(struct host_stream *s, const struct host_op *op)
{
    uint64_t begin = s->ready_ns;

    s->ready_ns = hl_device_host_link_copy(op->copy.link, op->copy.dst, op->copy.src,
                                           op->copy.bytes, s->urgent, begin);
    hl_device_tell_span(&s->dev->base,
                        op->copy.link == &s->dev->h2d ? HL_DEVICE_H2D : HL_DEVICE_D2H, begin,
                        s->ready_ns, op->copy.bytes);
    return 0;
}

static int run_inside(struct host_stream *s, const struct host_op *op)
{
    memcpy(op->copy.dst, op->copy.src, op->copy.bytes);
    return 0;
}

/* device_dst, device_src: the ends that are on the device, NULL for the host's. */
static int queue_copy(struct host_device *dev, const struct host_op *op, const void *device_dst,
                      const void *device_src, void *stream)
{
    struct host_stream *s = hl_device_host_stream(dev, stream);
    int rc = 0;

    if (!s)
        return -EINVAL;
    if (op->copy.bytes == 0)
        return 0;
    if (!op->copy.dst || !op->copy.src)
        return hl_fail(-EINVAL, "copy from %p to %p", op->copy.src, op->copy.dst);
    if (device_dst)
        rc = hl_device_host_check(dev, "copy to", device_dst, op->copy.bytes, 1);
    if (rc == 0 && device_src)
        rc = hl_device_host_check(dev, "copy from", device_src, op->copy.bytes, 1);
    if (rc == 0 && device_dst && device_src)
        rc = hl_device_host_check_apart("copy", device_dst, op->copy.bytes, device_src,
                                        op->copy.bytes);
    if (rc < 0)
        return rc;
    (void)hl_device_host_push(s, op);
    return 0;
}

int hl_device_host_copy_h2d(struct haul_device *base, void *dst, const void *src, uint64_t bytes,
                            void *stream)
{
    struct host_device *dev = host_of(base);
    struct host_op op = {.run = run_link, .lane = -1, .copy = {dst, src, bytes, .link = &dev->h2d}};

    return queue_copy(dev, &op, dst, NULL, stream);
}

int hl_device_host_copy_d2h(struct haul_device *base, void *dst, const void *src, uint64_t bytes,
                            void *stream)
{
    struct host_device *dev = host_of(base);
    struct host_op op = {.run = run_link, .lane = -1, .copy = {dst, src, bytes, .link = &dev->d2h}};

    return queue_copy(dev, &op, NULL, src, stream);
}

int hl_device_host_copy_d2d(struct haul_device *base, void *dst, const void *src, uint64_t bytes,
                            void *stream)
{
    struct host_op op = {.run = run_inside,
                         .lane = HL_DEVICE_KERNELS,
                         .no_time = 1,
                         .copy = {dst, src, bytes, .link = NULL}};

    return queue_copy(host_of(base), &op, dst, src, stream);
}

static int run_launch(struct host_stream *s, const struct host_op *op)
{
    op->launch.fn(op->launch.user);
    return 0;
}

static int run_occupy(struct host_stream *s, const struct host_op *op)
{
    uint64_t begin = s->ready_ns;

    s->ready_ns += op->occupy_ns;
    hl_clock_sleep_until(s->ready_ns);
    atomic_fetch_add_explicit(&s->dev->lane[HL_DEVICE_COMPUTE].busy_ns, op->occupy_ns,
                              memory_order_relaxed);
    hl_device_tell_span(&s->dev->base, HL_DEVICE_COMPUTE, begin, s->ready_ns, 0);
    return 0;
}

static int run_call(struct host_stream *s, const struct host_op *op)
{
    op->launch.fn(op->launch.user);
    s->ready_ns = hl_clock_ns();
    return 0;
}

static int queue_op(struct haul_device *base, void *stream, const struct host_op *op)
{
    struct host_stream *s = hl_device_host_stream(host_of(base), stream);

    if (!s)
        return -EINVAL;
    (void)hl_device_host_push(s, op);
    return 0;
}

int hl_device_host_launch(struct haul_device *base, void *stream, haul_device_fn fn, void *user)
{
    struct host_op op = {.run = run_launch, .lane = HL_DEVICE_COMPUTE, .launch = {fn, user}};

    return queue_op(base, stream, &op);
}

int hl_device_host_occupy(struct haul_device *base, void *stream, uint64_t ns)
{
    struct host_op op = {.run = run_occupy, .lane = -1, .occupy_ns = ns};

    return queue_op(base, stream, &op);
}

int hl_device_host_call(struct haul_device *base, void *stream, haul_device_fn fn, void *user)
{
    struct host_op op = {.run = run_call, .lane = -1, .launch = {fn, user}};

    return queue_op(base, stream, &op);
}
