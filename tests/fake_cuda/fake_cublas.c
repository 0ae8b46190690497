/*
 * fake_cublas.c: a libcublas for tests: the one product that train_gpt_cuda asks for, in its stream's turn, by
 * OpenBLAS. BF16 in, sums in FP32, FP32 or BF16 out, as cuBLAS has it. A wrong use ends the process.
 */
#include <cblas.h>
#include <stdio.h>
#include <stdlib.h>

#include "arith.h"
#include "fake_state.h"

enum { OP_N = 0, OP_T = 1, TYPE_FP32 = 0, TYPE_BF16 = 14, COMPUTE_FP32 = 68, ALGO_DEFAULT = -1 };

struct cublas {
    CUstream stream;
    uint64_t workspace_bytes;
};

/* Column-major, as cuBLAS is. */
struct product {
    int turn_a, turn_b, m, n, k, lda, ldb, ldc, ctype, batch;
    long long stride_a, stride_b, stride_c;
    float alpha, beta;
    const uint16_t *a, *b;
    void *c;
};

EXPORT int cublasCreate_v2(struct cublas **out);
EXPORT int cublasDestroy_v2(struct cublas *handle);
EXPORT int cublasSetStream_v2(struct cublas *handle, CUstream stream);
EXPORT int cublasSetWorkspace_v2(struct cublas *handle, void *p, size_t bytes);
EXPORT int cublasGemmStridedBatchedEx(struct cublas *handle, int opa, int opb, int m, int n, int k,
                                      const void *alpha, const void *a, int atype, int lda,
                                      long long stride_a, const void *b, int btype, int ldb,
                                      long long stride_b, const void *beta, void *c, int ctype,
                                      int ldc, long long stride_c, int batch, int compute,
                                      int algo);

static void must(int right, const char *what)
{
    if (right)
        return;
    fprintf(stderr, "fake_cublas: %s\n", what);
    _Exit(99);
}

/* Not known, and so believed, where the question fails on demand. */
static int is_device(const void *p)
{
    unsigned type = CU_MEMORYTYPE_DEVICE;
    CUresult res =
        cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, (CUdeviceptr)(uintptr_t)p);

    return res != CUDA_ERROR_INVALID_VALUE && type == CU_MEMORYTYPE_DEVICE;
}

int cublasCreate_v2(struct cublas **out)
{
    *out = calloc(1, sizeof **out);
    openblas_set_num_threads(1);
    return *out ? 0 : 3;
}

int cublasDestroy_v2(struct cublas *handle)
{
    free(handle);
    return 0;
}

/* Forgets the workspace, as cuBLAS does. */
int cublasSetStream_v2(struct cublas *handle, CUstream stream)
{
    handle->stream = stream;
    handle->workspace_bytes = 0;
    return 0;
}

int cublasSetWorkspace_v2(struct cublas *handle, void *p, size_t bytes)
{
    must((uintptr_t)p % 256 == 0 && is_device(p) && is_device((char *)p + bytes - 1),
         "the workspace is no device memory at 256 bytes");
    handle->workspace_bytes = bytes;
    return 0;
}

/* (rows, cols) column-major with a stride of ld, in FP32. */
static float *widened(const uint16_t *in, int rows, int cols, int ld)
{
    float *out = malloc((size_t)rows * (size_t)cols * sizeof *out);

    must(out != NULL, "no memory");
    for (int j = 0; j < cols; j++)
        for (int i = 0; i < rows; i++)
            out[(size_t)j * (size_t)rows + (size_t)i] =
                hl_float_from_bits((uint32_t)in[(size_t)j * (size_t)ld + (size_t)i] << 16);
    return out;
}

/* Half to even. */
static uint16_t narrowed(float f)
{
    uint32_t bits = hl_float_bits(f);

    return (uint16_t)(f != f ? 0x7fc0 : (bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static void multiply(const struct product *p, const uint16_t *a, const uint16_t *b, float *c,
                     int ldc)
{
    int arows = p->turn_a ? p->k : p->m, acols = p->turn_a ? p->m : p->k;
    int brows = p->turn_b ? p->n : p->k, bcols = p->turn_b ? p->k : p->n;
    float *wide_a = widened(a, arows, acols, p->lda), *wide_b = widened(b, brows, bcols, p->ldb);

    cblas_sgemm(CblasColMajor, p->turn_a ? CblasTrans : CblasNoTrans,
                p->turn_b ? CblasTrans : CblasNoTrans, p->m, p->n, p->k, p->alpha, wide_a, arows,
                wide_b, brows, p->beta, c, ldc);
    free(wide_a);
    free(wide_b);
}

static void multiply_to_bf16(const struct product *p, const uint16_t *a, const uint16_t *b,
                             uint16_t *c)
{
    float *sums = malloc((size_t)p->m * (size_t)p->n * sizeof *sums);

    must(sums != NULL, "no memory");
    multiply(p, a, b, sums, p->m);
    for (int j = 0; j < p->n; j++)
        for (int i = 0; i < p->m; i++)
            c[(size_t)j * (size_t)p->ldc + (size_t)i] =
                narrowed(sums[(size_t)j * (size_t)p->m + (size_t)i]);
    free(sums);
}

static void run(void *user)
{
    struct product *p = user;

    for (int i = 0; i < p->batch; i++) {
        const uint16_t *a = p->a + i * p->stride_a, *b = p->b + i * p->stride_b;

        if (p->ctype == TYPE_BF16)
            multiply_to_bf16(p, a, b, (uint16_t *)p->c + i * p->stride_c);
        else
            multiply(p, a, b, (float *)p->c + i * p->stride_c, p->ldc);
    }
    free(p);
}

/* (rows, cols) column-major, batch of them: the first and the last element are the device's. */
static void must_be_there(const void *p, int size, int rows, int cols, int ld, long long stride,
                          int batch)
{
    long long last = (batch - 1) * stride + (long long)(cols - 1) * ld + rows - 1;

    must(rows > 0 && cols > 0 && batch > 0 && ld >= rows, "sizes or a stride are wrong");
    must(is_device(p) && is_device((const char *)p + last * size), "an array is no device memory");
}

int cublasGemmStridedBatchedEx(struct cublas *handle, int opa, int opb, int m, int n, int k,
                               const void *alpha, const void *a, int atype, int lda,
                               long long stride_a, const void *b, int btype, int ldb,
                               long long stride_b, const void *beta, void *c, int ctype, int ldc,
                               long long stride_c, int batch, int compute, int algo)
{
    struct product *p = malloc(sizeof *p);

    must(p != NULL, "no memory");
    must(handle && handle->workspace_bytes > 0, "no handle, or no workspace");
    must(atype == TYPE_BF16 && btype == TYPE_BF16 && (ctype == TYPE_BF16 || ctype == TYPE_FP32) &&
             compute == COMPUTE_FP32 && algo == ALGO_DEFAULT,
         "types are not those that are faked");
    *p = (struct product){opa == OP_T,
                          opb == OP_T,
                          m,
                          n,
                          k,
                          lda,
                          ldb,
                          ldc,
                          ctype,
                          batch,
                          stride_a,
                          stride_b,
                          stride_c,
                          *(const float *)alpha,
                          *(const float *)beta,
                          a,
                          b,
                          c};
    must(ctype == TYPE_FP32 || p->beta == 0, "sums into BF16 are not faked");
    must_be_there(a, 2, opa == OP_T ? k : m, opa == OP_T ? m : k, lda, stride_a, batch);
    must_be_there(b, 2, opb == OP_T ? n : k, opb == OP_T ? k : n, ldb, stride_b, batch);
    must_be_there(c, ctype == TYPE_BF16 ? 2 : 4, m, n, ldc, stride_c, batch);
    if (cuLaunchHostFunc(handle->stream, run, p) == CUDA_SUCCESS)
        return 0;
    free(p);
    return 13; /* CUBLAS_STATUS_EXECUTION_FAILED */
}
