/*
 * fp_env.h: the floating-point environment that every bit of this room depends on: round to nearest,
 * denormals are zero as operands and as results, no traps. Keeping them costs up to 25 times on processors
 * that hand them to microcode. A trainer may have set another environment, so each thread enters and leaves
 * this one around its work.
 */
#ifndef HL_FP_ENV_H
#define HL_FP_ENV_H

#if defined(__x86_64__)
#include <immintrin.h>

typedef unsigned hl_fp_env;

static inline hl_fp_env hl_fp_env_enter(void)
{
    hl_fp_env old = _mm_getcsr();

    _mm_setcsr(0x9fc0); /* all exceptions masked, to nearest, flush to zero both ways */
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
    __asm__ volatile("msr fpcr, %0" : : "r"(UINT64_C(1) << 24));
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
