/* doctor_gpu.c: the NVIDIA driver, opened at run time so that one binary runs with and without it. */
#include <dlfcn.h>
#include <stdio.h>

#include "doctor.h"
#include "haul/size.h"

/* The driver API, as far as it is asked: every call returns 0 on success. */
struct driver {
    int (*init)(unsigned flags);
    int (*version)(int *version);
    int (*count)(int *n);
    int (*device)(int *device, int ordinal);
    int (*name)(char *name, int len, int device);
    int (*total_mem)(size_t *bytes, int device);
};

static const char no_gpu_remedy[] =
    "haul runs on its emulated device; for a GPU install the NVIDIA driver (docker: --gpus all)";

static int load(void *lib, const char *name, void *fn)
{
    *(void **)fn = dlsym(lib, name);
    return *(void **)fn != NULL ? 0 : -1;
}

static int load_all(void *lib, struct driver *d)
{
    return load(lib, "cuInit", &d->init) | load(lib, "cuDriverGetVersion", &d->version) |
           load(lib, "cuDeviceGetCount", &d->count) | load(lib, "cuDeviceGet", &d->device) |
           load(lib, "cuDeviceGetName", &d->name) | load(lib, "cuDeviceTotalMem_v2", &d->total_mem);
}

static void list_devices(struct hl_doctor *doc, const struct driver *d, int n, int version)
{
    for (int i = 0; i < n; i++) {
        char name[128] = "", size[32];
        size_t bytes = 0;
        int dev;

        if (d->device(&dev, i) != 0 || d->name(name, sizeof name, dev) != 0 ||
            d->total_mem(&bytes, dev) != 0)
            hl_doctor_add(doc, "gpu", HL_HEALTH_WARN, "see nvidia-smi", "device %d does not answer",
                          i);
        else
            hl_doctor_add(doc, "gpu", HL_HEALTH_OK, NULL, "%d: %s, %s, driver for CUDA %d.%d", i,
                          name, haul_format_size(bytes, size, sizeof size), version / 1000,
                          version % 1000 / 10);
    }
}

void hl_doctor_gpu(struct hl_doctor *doc)
{
    void *lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    struct driver d;
    int rc, n = 0, version = 0;

    if (lib == NULL) {
        hl_doctor_add(doc, "gpu", HL_HEALTH_WARN, no_gpu_remedy, "no NVIDIA driver (libcuda.so.1)");
        return;
    }
    if (load_all(lib, &d) != 0) {
        hl_doctor_add(doc, "gpu", HL_HEALTH_WARN, "install a current NVIDIA driver",
                      "libcuda.so.1 lacks functions that haul calls");
    } else if ((rc = d.init(0)) != 0 || d.count(&n) != 0 || n == 0) {
        hl_doctor_add(doc, "gpu", HL_HEALTH_WARN, no_gpu_remedy,
                      "the NVIDIA driver is there but shows no device (cuInit %d)", rc);
    } else {
        if (d.version(&version) != 0)
            version = 0;
        list_devices(doc, &d, n, version);
    }
    dlclose(lib);
}
