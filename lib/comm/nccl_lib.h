/*
 * nccl_lib.h: NCCL, opened at run time. Only for the comm_nccl*.c files. Its few functions, types and
 * numbers are declared here, since its header need not be there to build.
 */
#ifndef HL_NCCL_LIB_H
#define HL_NCCL_LIB_H

#include <limits.h>
#include <stddef.h>

#include "haul/nccl.h"

enum nccl_result { NCCL_SUCCESS = 0, NCCL_IN_PROGRESS = 7 };
enum nccl_type { NCCL_INT8 = 0, NCCL_FLOAT16 = 6, NCCL_FLOAT32 = 7, NCCL_BFLOAT16 = 9 };
enum { NCCL_SUM = 0 };

#define NCCL_LEAST_VERSION 21800 /* 2.18.0: ncclCommSplit */

struct nccl_id {
    char internal[128];
};

/* As of 2.18; newer ones read no more than size says. */
struct nccl_config {
    size_t size;
    unsigned magic, version;
    int blocking, cga_cluster_size, min_ctas, max_ctas;
    const char *net_name;
    int split_share;
};

/* Calls return at once, and are asked after: a rank that is missed must not hold a thread for good. */
static inline struct nccl_config hl_nccl_config(void)
{
    return (struct nccl_config){sizeof(struct nccl_config),
                                0xcafebeef,
                                NCCL_LEAST_VERSION,
                                0,
                                INT_MIN,
                                INT_MIN,
                                INT_MIN,
                                NULL,
                                INT_MIN};
}

/* X(name, arguments): each returns an enum nccl_result. Streams are cudaStream_t. */
#define HL_NCCL_CALLS(X)                                                                           \
    X(ncclGetVersion, (int *version))                                                              \
    X(ncclGetUniqueId, (struct nccl_id * id))                                                      \
    X(ncclCommInitRankConfig, (struct ncclComm * *comm, int nranks, struct nccl_id id, int rank,   \
                               struct nccl_config *config))                                        \
    X(ncclCommSplit, (struct ncclComm * comm, int color, int key, struct ncclComm **out,           \
                      struct nccl_config *config))                                                 \
    X(ncclCommFinalize, (struct ncclComm * comm))                                                  \
    X(ncclCommDestroy, (struct ncclComm * comm))                                                   \
    X(ncclCommAbort, (struct ncclComm * comm))                                                     \
    X(ncclCommGetAsyncError, (struct ncclComm * comm, int *result))                                \
    X(ncclCommCount, (const struct ncclComm *comm, int *count))                                    \
    X(ncclCommCuDevice, (const struct ncclComm *comm, int *device))                                \
    X(ncclCommUserRank, (const struct ncclComm *comm, int *rank))                                  \
    X(ncclAllGather,                                                                               \
      (const void *send, void *recv, size_t count, int type, struct ncclComm *comm, void *stream)) \
    X(ncclBroadcast, (const void *send, void *recv, size_t count, int type, int root,              \
                      struct ncclComm *comm, void *stream))                                        \
    X(ncclReduceScatter, (const void *send, void *recv, size_t count, int type, int op,            \
                          struct ncclComm *comm, void *stream))                                    \
    X(ncclSend,                                                                                    \
      (const void *send, size_t count, int type, int peer, struct ncclComm *comm, void *stream))   \
    X(ncclRecv,                                                                                    \
      (void *recv, size_t count, int type, int peer, struct ncclComm *comm, void *stream))         \
    X(ncclGroupStart, (void))                                                                      \
    X(ncclGroupEnd, (void))

struct nccl_lib {
    void *lib;
    int version;
#define HL_X(name, args) int(*name) args;
    HL_NCCL_CALLS(HL_X)
#undef HL_X
    const char *(*ncclGetErrorString)(int result);
    const char *(*ncclGetLastError)(struct ncclComm *comm);
};

/* libnccl.so.2 with every function, new enough. HAUL_E_NCCL: the text says what to install. */
int hl_nccl_open(struct nccl_lib *lib);
void hl_nccl_close(struct nccl_lib *lib);

/* 0, or HAUL_E_NCCL in NCCL's words. NCCL_IN_PROGRESS is no failure. */
int hl_nccl_result(const struct nccl_lib *lib, int result, const char *call);
#define HL_NCCL(lib, fn, ...) hl_nccl_result((lib), (lib)->fn(__VA_ARGS__), #fn)

#endif
