/* cpu.c: CPUID and XGETBV, read once, under the user's upper bound. */
#include "cpu.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "fail.h"

#if defined(__x86_64__)
#include <cpuid.h>

#define XCR0_AVX    0x06u /* XMM and YMM state saved by the OS */
#define XCR0_AVX512 0xe6u /* and opmask, ZMM high halves, ZMM16 to 31 */

static unsigned long long xcr0(void)
{
    unsigned eax, edx;

    __asm__ volatile("xgetbv" : "=a"(eax), "=d"(edx) : "c"(0));
    return (unsigned long long)edx << 32 | eax;
}

static enum hl_isa best_x86(void)
{
    const unsigned leaf1 = bit_OSXSAVE | bit_AVX | bit_FMA | bit_F16C;
    const unsigned leaf7 = bit_AVX512F | bit_AVX512BW | bit_AVX512DQ | bit_AVX512VL;
    unsigned a, b, c, d;
    unsigned long long saved;

    if (!__get_cpuid(1, &a, &b, &c, &d) || (c & leaf1) != leaf1)
        return HL_ISA_C;
    saved = xcr0();
    if ((saved & XCR0_AVX) != XCR0_AVX)
        return HL_ISA_C;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(b & bit_AVX2))
        return HL_ISA_C;
    if ((b & leaf7) == leaf7 && (saved & XCR0_AVX512) == XCR0_AVX512)
        return HL_ISA_AVX512;
    return HL_ISA_AVX2;
}
#endif

static const char *const isa_names[HL_NISA] = {"c", "neon", "avx2", "avx512"};

static pthread_once_t isa_once = PTHREAD_ONCE_INIT;
static enum hl_isa isa_best; /* written once, then only read */

const char *hl_isa_name(enum hl_isa isa)
{
    return (unsigned)isa < HL_NISA ? isa_names[isa] : "unknown";
}

int hl_cpu_has(enum hl_isa isa)
{
    if (isa == HL_ISA_C)
        return 1;
#if defined(__x86_64__)
    return isa != HL_ISA_NEON && isa <= best_x86();
#elif defined(__aarch64__)
    return isa == HL_ISA_NEON;
#else
    return 0;
#endif
}

static int bound_from_mask(const char *mask)
{
    if (!mask || !*mask)
        return HL_NISA - 1;
    for (int isa = 0; isa < HL_NISA; isa++)
        if (strcmp(mask, isa_names[isa]) == 0)
            return isa;
    hl_log(HAUL_LOG_WARN, "HAUL_CPU_MASK=%s is none of c, neon, avx2, avx512: ignored", mask);
    return HL_NISA - 1;
}

static void choose_isa(void)
{
    int isa = bound_from_mask(getenv("HAUL_CPU_MASK"));

    while (!hl_cpu_has((enum hl_isa)isa))
        isa--;
    isa_best = (enum hl_isa)isa;
}

enum hl_isa hl_cpu_isa(void)
{
    pthread_once(&isa_once, choose_isa);
    return isa_best;
}
