/* device.c: the public calls, handed to the back end. */
#include "device_ops.h"
#include "fail.h"

static int missing(const char *call)
{
    return hl_fail(-EINVAL, "%s: an argument is NULL (device, output or function)", call);
}

int haul_device_close(struct haul_device *dev)
{
    return dev ? dev->ops->close(dev) : 0;
}

const char *haul_device_name(const struct haul_device *dev)
{
    return dev ? dev->ops->name(dev) : "none";
}

int haul_device_mem_info(struct haul_device *dev, struct haul_device_mem *out)
{
    if (!dev || !out)
        return missing("haul_device_mem_info");
    if (out->struct_size != sizeof *out)
        return hl_fail(HAUL_E_ABI, "haul_device_mem: struct_size is %zu, this library knows %zu",
                       out->struct_size, sizeof *out);
    return dev->ops->mem_info(dev, out);
}

int haul_device_alloc(struct haul_device *dev, uint64_t bytes, void **out)
{
    if (!dev || !out)
        return missing("haul_device_alloc");
    return dev->ops->alloc(dev, bytes, out);
}

void haul_device_free(struct haul_device *dev, void *ptr)
{
    if (dev && ptr)
        dev->ops->free(dev, ptr);
}

int haul_device_stream_open(struct haul_device *dev, void **stream)
{
    if (!dev || !stream)
        return missing("haul_device_stream_open");
    return dev->ops->stream_open(dev, 0, stream);
}

void haul_device_stream_close(struct haul_device *dev, void *stream)
{
    if (dev && stream)
        dev->ops->stream_close(dev, stream);
}

int haul_device_launch(struct haul_device *dev, void *stream, haul_device_fn fn, void *user)
{
    if (!dev || !fn)
        return missing("haul_device_launch");
    if (!dev->ops->launch)
        return hl_fail(HAUL_E_DEVICE, "%s cannot run host functions as compute",
                       dev->ops->name(dev));
    return dev->ops->launch(dev, stream, fn, user);
}

int haul_device_call(struct haul_device *dev, void *stream, haul_device_fn fn, void *user)
{
    if (!dev || !fn)
        return missing("haul_device_call");
    if (!dev->ops->call)
        return hl_fail(HAUL_E_DEVICE, "%s cannot run host functions", dev->ops->name(dev));
    return dev->ops->call(dev, stream, fn, user);
}

int haul_device_in_host_memory(const struct haul_device *dev)
{
    return dev && dev->in_host_memory;
}

int haul_device_stream_sync(struct haul_device *dev, void *stream)
{
    if (!dev)
        return missing("haul_device_stream_sync");
    return dev->ops->stream_sync(dev, stream);
}

int haul_device_copy_h2d(struct haul_device *dev, void *dst, const void *src, uint64_t bytes,
                         void *stream)
{
    if (!dev)
        return missing("haul_device_copy_h2d");
    return dev->ops->copy_h2d(dev, dst, src, bytes, stream);
}

int haul_device_copy_d2h(struct haul_device *dev, void *dst, const void *src, uint64_t bytes,
                         void *stream)
{
    if (!dev)
        return missing("haul_device_copy_d2h");
    return dev->ops->copy_d2h(dev, dst, src, bytes, stream);
}

int haul_device_copy_d2d(struct haul_device *dev, void *dst, const void *src, uint64_t bytes,
                         void *stream)
{
    if (!dev)
        return missing("haul_device_copy_d2d");
    return dev->ops->copy_d2d(dev, dst, src, bytes, stream);
}

int haul_device_host_register(struct haul_device *dev, void *ptr, uint64_t bytes)
{
    if (!dev || !ptr || !bytes)
        return hl_fail(-EINVAL, "haul_device_host_register: no device, or no memory");
    return dev->ops->host_register ? dev->ops->host_register(dev, ptr, bytes) : 0;
}

int haul_device_host_unregister(struct haul_device *dev, void *ptr)
{
    if (!dev || !ptr)
        return missing("haul_device_host_unregister");
    return dev->ops->host_unregister ? dev->ops->host_unregister(dev, ptr) : 0;
}
