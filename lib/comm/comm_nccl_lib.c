/* comm_nccl_lib.c: libnccl.so.2 at run time, and its errors as texts. */
#include <dlfcn.h>
#include <string.h>

#include "fail.h"
#include "nccl_lib.h"
#include "sys.h"

#define REMEDY "install NCCL 2.18 or newer (libnccl2), or name its folder in LD_LIBRARY_PATH"

static int find(struct nccl_lib *lib, const char *name, void *at)
{
    void *fn = dlsym(lib->lib, name);

    if (!fn)
        return hl_fail(HAUL_E_NCCL, "libnccl.so.2 has no %s: " REMEDY, name);
    memcpy(at, &fn, sizeof fn);
    return 0;
}

static int find_all(struct nccl_lib *lib)
{
    int rc;

#define HL_X(name, args)                                                                           \
    if ((rc = find(lib, #name, &lib->name)) < 0)                                                   \
        return rc;
    HL_NCCL_CALLS(HL_X)
#undef HL_X
    if ((rc = find(lib, "ncclGetErrorString", &lib->ncclGetErrorString)) < 0)
        return rc;
    return find(lib, "ncclGetLastError", &lib->ncclGetLastError);
}

/* It keeps threads and static state: once loaded it stays. */
int hl_nccl_open(struct nccl_lib *lib)
{
    int rc = hl_sys_attempt("dlopen of libnccl.so.2");

    if (rc < 0)
        return rc;
    memset(lib, 0, sizeof *lib);
    lib->lib = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (!lib->lib)
        return hl_fail(HAUL_E_NCCL, "no NCCL (%s): " REMEDY, dlerror());
    rc = find_all(lib);
    if (rc == 0)
        rc = HL_NCCL(lib, ncclGetVersion, &lib->version);
    if (rc == 0 && lib->version < NCCL_LEAST_VERSION)
        rc = hl_fail(HAUL_E_NCCL, "libnccl.so.2 is version %d: " REMEDY, lib->version);
    if (rc < 0)
        hl_nccl_close(lib);
    return rc;
}

void hl_nccl_close(struct nccl_lib *lib)
{
    if (lib->lib)
        dlclose(lib->lib);
    lib->lib = NULL;
}

int hl_nccl_result(const struct nccl_lib *lib, int result, const char *call)
{
    const char *detail;

    if (result == NCCL_SUCCESS || result == NCCL_IN_PROGRESS)
        return 0;
    detail = lib->ncclGetLastError(NULL);
    return hl_fail(HAUL_E_NCCL, "%s: %s (%d)%s%s", call, lib->ncclGetErrorString(result), result,
                   detail && *detail ? ": " : "", detail ? detail : "");
}
