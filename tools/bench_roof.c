/*
 * bench_roof.c: loads and stores without arithmetic, on the widest vectors there are. An empty asm
 * statement makes each value opaque, so that no load or store can be left out.
 */
#include "bench_roof.h"

#include <string.h>

#include "cpu.h"

#define AHEAD  2048
#define INLINE static inline __attribute__((always_inline))

const char *hl_roof_name(enum hl_roof_way way)
{
    static const char *const names[HL_NROOFS] = {"plain", "prefetch", "stream", "prefetch+stream",
                                                 "stream all"};

    return names[way];
}

unsigned hl_roof_bytes(const struct hl_roof_shape *s)
{
    return s->grad_bytes + 2 * (s->master_bytes + s->nmoments * s->moment_bytes) + s->param * 2;
}

#if defined(__x86_64__)
#include <immintrin.h>

#define ISA          avx512
#define TARGET       __attribute__((target("avx512f")))
#define LINE         __m512i
#define LOAD(p)      _mm512_loadu_si512((const void *)(p))
#define OPAQUE(x)    __asm__ volatile("" : "+v"(x))
#define STORE(p, x)  _mm512_storeu_si512((void *)(p), x)
#define STREAM(p, x) _mm512_stream_si512((void *)(p), x)
#define WIDTH        64
#include "bench_roof.inc.h"

#define ISA          avx2
#define TARGET       __attribute__((target("avx2")))
#define LINE         __m256i
#define LOAD(p)      _mm256_loadu_si256((const void *)(p))
#define OPAQUE(x)    __asm__ volatile("" : "+x"(x))
#define STORE(p, x)  _mm256_storeu_si256((void *)(p), x)
#define STREAM(p, x) _mm256_stream_si256((void *)(p), x)
#define WIDTH        32
#include "bench_roof.inc.h"
#endif

typedef long word2 __attribute__((vector_size(16), aligned(1), may_alias));

#define ISA plain
#define TARGET
#define LINE         word2
#define LOAD(p)      (*(const word2 *)(p))
#define OPAQUE(x)    __asm__ volatile("" : "+m"(x))
#define STORE(p, x)  (*(word2 *)(p) = (x))
#define STREAM(p, x) STORE(p, x)
#define WIDTH        16
#include "bench_roof.inc.h"

/* CPUID costs microseconds in a virtual machine: asked once. */
static enum hl_isa widest(void)
{
    static _Atomic(enum hl_isa) isa = HL_NISA; /* the whole team may ask */

    if (isa == HL_NISA)
        isa = hl_cpu_has(HL_ISA_AVX512) ? HL_ISA_AVX512
              : hl_cpu_has(HL_ISA_AVX2) ? HL_ISA_AVX2
                                        : HL_ISA_C;
    return isa;
}

void hl_roof_move(const struct hl_roof_shape *shape, enum hl_roof_way way,
                  const struct hl_roof_arrays *arrays, uint64_t begin, uint64_t end)
{
#if defined(__x86_64__)
    if (widest() == HL_ISA_AVX512)
        move_avx512(shape, way, arrays, begin, end);
    else if (widest() == HL_ISA_AVX2)
        move_avx2(shape, way, arrays, begin, end);
    else
#endif
        move_plain(shape, way, arrays, begin, end);
#if defined(__x86_64__)
    _mm_sfence();
#endif
}

void hl_roof_read(const char *src, uint64_t bytes, int prefetch)
{
#if defined(__x86_64__)
    if (widest() == HL_ISA_AVX512)
        read_avx512(src, bytes, prefetch);
    else if (widest() == HL_ISA_AVX2)
        read_avx2(src, bytes, prefetch);
    else
#endif
        read_plain(src, bytes, prefetch);
}
