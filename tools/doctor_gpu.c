/* doctor_gpu.c: the NVIDIA driver, opened at run time so that one binary runs with and without it. */
#include <dlfcn.h>
#include <stdio.h>
#include <sys/resource.h>

#include "doctor_gpu.h"
#include "haul/device_cuda.h"
#include "haul/size.h"
#include "sys.h"

/* The driver API, as far as it is asked: every call returns 0 on success. */
struct driver {
    int (*init)(unsigned flags);
    int (*version)(int *version);
    int (*count)(int *n);
    int (*device)(int *device, int ordinal);
    int (*name)(char *name, int len, int device);
    int (*total_mem)(size_t *bytes, int device);
    int (*pci_id)(char *id, int len, int device);
    int (*attribute)(int *value, int attribute, int device);
    int (*can_access_peer)(int *can, int device, int peer);
};

/* Of cuda.h, which a build without CUDA does not have. */
enum { CAPABILITY_MAJOR = 75, CAPABILITY_MINOR = 76, HOST_REGISTER_SUPPORTED = 99 };

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
           load(lib, "cuDeviceGetName", &d->name) |
           load(lib, "cuDeviceTotalMem_v2", &d->total_mem) |
           load(lib, "cuDeviceGetPCIBusId", &d->pci_id) |
           load(lib, "cuDeviceGetAttribute", &d->attribute) |
           load(lib, "cuDeviceCanAccessPeer", &d->can_access_peer);
}

static void capability_finding(struct hl_doctor *doc, const struct driver *d, int i, int dev)
{
    int major = 0, minor = 0;

    if (d->attribute(&major, CAPABILITY_MAJOR, dev) == 0 &&
        d->attribute(&minor, CAPABILITY_MINOR, dev) == 0 && major < 8)
        hl_doctor_add(doc, "gpu", HL_HEALTH_FAIL, "haul needs an Ampere GPU or a later one",
                      "%d: compute capability %d.%d, older than 8.0", i, major, minor);
}

/* How much host memory may be pinned: by the driver as much as there is, unless it refuses. */
static void pinning_finding(struct hl_doctor *doc, const struct driver *d, int i, int dev)
{
    uint64_t memlock = UINT64_MAX;
    char limit[32] = "unlimited";
    int supported = 1;

    if (d->attribute(&supported, HOST_REGISTER_SUPPORTED, dev) == 0 && !supported) {
        hl_doctor_add(doc, "gpu pinning", HL_HEALTH_WARN,
                      "copies will be slower: update the driver",
                      "%d: the driver cannot register host memory", i);
        return;
    }
    if (hl_sys_rlimit(RLIMIT_MEMLOCK, &memlock) == 0 && memlock != UINT64_MAX)
        haul_format_size(memlock, limit, sizeof limit);
    hl_doctor_add(doc, "gpu pinning", HL_HEALTH_OK, NULL,
                  "%d: registers host memory; what the driver pins counts against the cgroup's "
                  "memory, io_uring's pins against RLIMIT_MEMLOCK (%s)",
                  i, limit);
}

static void peers_finding(struct hl_doctor *doc, const struct driver *d, int n)
{
    int npairs = 0, a, b, can;

    for (int i = 0; i < n; i++)
        for (int j = 0; j < n; j++)
            npairs += i != j && d->device(&a, i) == 0 && d->device(&b, j) == 0 &&
                      d->can_access_peer(&can, a, b) == 0 && can;
    if (n > 1)
        hl_doctor_add(doc, "gpu p2p", npairs == n * (n - 1) ? HL_HEALTH_OK : HL_HEALTH_WARN,
                      npairs == n * (n - 1)
                          ? NULL
                          : "gathers between the others go through host memory: see nvidia-smi "
                            "topo -p2p r",
                      "%d of %d pairs of GPUs reach each other's memory", npairs, n * (n - 1));
}

static void slot_findings(struct hl_doctor *doc, const struct driver *d, int i, int dev,
                          uint64_t mem_bytes)
{
    struct hl_gpu_slot slot;
    char pci[32] = "";

    if (d->pci_id(pci, sizeof pci, dev) != 0)
        return;
    hl_gpu_slot_read("/sys", pci, &slot);
    hl_gpu_slot_findings(doc, i, &slot, mem_bytes);
}

static void list_devices(struct hl_doctor *doc, const struct driver *d, int n, int version)
{
    for (int i = 0; i < n; i++) {
        char name[128] = "", size[32];
        size_t bytes = 0;
        int dev;

        if (d->device(&dev, i) != 0 || d->name(name, sizeof name, dev) != 0 ||
            d->total_mem(&bytes, dev) != 0) {
            hl_doctor_add(doc, "gpu", HL_HEALTH_WARN, "see nvidia-smi", "device %d does not answer",
                          i);
            continue;
        }
        hl_doctor_add(doc, "gpu", HL_HEALTH_OK, NULL, "%d: %s, %s, driver for CUDA %d.%d", i, name,
                      haul_format_size(bytes, size, sizeof size), version / 1000,
                      version % 1000 / 10);
        capability_finding(doc, d, i, dev);
        slot_findings(doc, d, i, dev, bytes);
        pinning_finding(doc, d, i, dev);
    }
    peers_finding(doc, d, n);
}

/* haul's own way in: whether the kernels load and a context can be had. */
static void open_finding(struct hl_doctor *doc)
{
    struct haul_device *dev;

    if (haul_device_cuda_open(NULL, &dev) < 0)
        hl_doctor_add(doc, "gpu haul", HL_HEALTH_WARN, NULL, "%s", haul_last_error());
    else if (haul_device_close(dev) == 0)
        hl_doctor_add(doc, "gpu haul", HL_HEALTH_OK, NULL, "haul's kernels load on it");
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
        open_finding(doc);
    }
    dlclose(lib);
}
