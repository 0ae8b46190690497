/* kernel_choice.c: which variant runs. */
#include "kernel_table.h"

const struct hl_kernels *hl_kernels_of(enum hl_isa isa)
{
    switch (isa) {
    case HL_ISA_C:
        return &hl_kernels_c;
#ifdef __x86_64__
    case HL_ISA_AVX2:
        return &hl_kernels_avx2;
    case HL_ISA_AVX512:
        return &hl_kernels_avx512;
#endif
#ifdef __aarch64__
    case HL_ISA_NEON:
        return &hl_kernels_neon;
#endif
    default:
        return NULL;
    }
}

const struct hl_kernels *hl_kernels_best(void)
{
    const struct hl_kernels *k = hl_kernels_of(hl_cpu_isa());

    return k ? k : &hl_kernels_c;
}

const char *haul_optim_variant(void)
{
    return hl_isa_name(hl_kernels_of(hl_cpu_isa()) ? hl_cpu_isa() : HL_ISA_C);
}
