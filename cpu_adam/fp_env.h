/*
 * fp_env.h: the floating-point environment that every bit of this room depends on: round to nearest,
 * denormals kept, no traps. A trainer may have set another (PyTorch flushes denormals on request), so
 * each thread enters and leaves it around its work.
 */
#ifndef HL_FP_ENV_H
#define HL_FP_ENV_H

#if defined(__x86_64__)
#include <immintrin.h>

typedef unsigned hl_fp_env;

static inline hl_fp_env hl_fp_env_enter(void)
{
    hl_fp_env old = _mm_getcsr();

    _mm_setcsr(0x1f80); /* all exceptions masked, to nearest, no flush to zero */
    return old;
}

static inline void hl_fp_env_leave(hl_fp_env old)
{
    _mm_setcsr(old);
}
#elif defined(__aarch64__)
#include <stdint.h>

typedef uint64_t hl_fp_env;

static inline hl_fp_env hl_fp_env_enter(void)
{
    hl_fp_env old;

    __asm__ volatile("mrs %0, fpcr" : "=r"(old));
    __asm__ volatile("msr fpcr, %0" : : "r"((uint64_t)0));
    return old;
}

static inline void hl_fp_env_leave(hl_fp_env old)
{
    __asm__ volatile("msr fpcr, %0" : : "r"(old));
}
#else
#include <fenv.h>

typedef fenv_t hl_fp_env;

static inline hl_fp_env hl_fp_env_enter(void)
{
    hl_fp_env old;

    fegetenv(&old);
    fesetenv(FE_DFL_ENV);
    return old;
}

static inline void hl_fp_env_leave(hl_fp_env old)
{
    fesetenv(&old);
}
#endif

#endif
