/* cpu.h: which instruction sets may be used. */
#ifndef HL_CPU_H
#define HL_CPU_H

enum hl_isa { HL_ISA_C = 0, HL_ISA_NEON, HL_ISA_AVX2, HL_ISA_AVX512, HL_NISA };

/* The best instruction set of this CPU and OS (AVX2 implies FMA and F16C, AVX512 implies F, BW, DQ,
 * VL), not above HAUL_CPU_MASK=c|neon|avx2|avx512. Read once; an unknown mask warns and is ignored. */
enum hl_isa hl_cpu_isa(void);

const char *hl_isa_name(enum hl_isa isa);

/* Whether this CPU can run it, whatever the mask says: for tests that try every variant. */
int hl_cpu_has(enum hl_isa isa);

#endif
