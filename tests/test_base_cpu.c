/* Instruction sets, held against what the kernel lists in /proc/cpuinfo. The choice is made once in a
 * process, so each case asks a child. */
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cpu.h"
#include "fail.h"
#include "suite.h"

static int listed(const char *flags, const char *flag)
{
    size_t n = strlen(flag);

    for (const char *p = flags; (p = strstr(p, flag)); p += n)
        if (p[-1] == ' ' && (p[n] == ' ' || p[n] == '\n'))
            return 1;
    return 0;
}

static int all_listed(const char *flags, const char *const *want)
{
    for (; *want; want++)
        if (!listed(flags, *want))
            return 0;
    return 1;
}

static enum hl_isa kernels_answer(void)
{
    static const char *const avx2[] = {"avx", "avx2", "fma", "f16c", NULL};
    static const char *const avx512[] = {"avx512f", "avx512bw", "avx512dq", "avx512vl", NULL};
    static char line[16384];
    FILE *f = fopen("/proc/cpuinfo", "r");
    enum hl_isa best = HL_ISA_C;

    cr_assert_not_null(f);
    while (fgets(line, sizeof line, f)) {
        if (strncmp(line, "flags", 5) != 0)
            continue;
        if (all_listed(line, avx2))
            best = all_listed(line, avx512) ? HL_ISA_AVX512 : HL_ISA_AVX2;
        break;
    }
    fclose(f);
    return best;
}

static int warned;

static void count_warning(void *user, enum haul_log_level level, const char *text)
{
    (void)user;
    warned += level == HAUL_LOG_WARN && strstr(text, "HAUL_CPU_MASK") != NULL;
}

/* isa, plus 16 when it warned. Through shared memory: an exit code is also what valgrind sets. */
static int ask_child(const char *mask)
{
    int *answer = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    int result;
    pid_t pid;

    cr_assert(answer != MAP_FAILED);
    *answer = -1;
    fflush(NULL);
    pid = fork();
    if (pid == 0) {
        haul_log_set(count_warning, NULL, HAUL_LOG_WARN);
        if (mask)
            setenv("HAUL_CPU_MASK", mask, 1);
        else
            unsetenv("HAUL_CPU_MASK");
        hl_cpu_isa();
        *answer = (int)hl_cpu_isa() + 16 * warned;
        _exit(0);
    }
    cr_assert_gt(pid, 0);
    cr_assert_eq(waitpid(pid, NULL, 0), pid);
    result = *answer;
    munmap(answer, 4096);
    return result;
}

static int lower(int a, int b)
{
    return a < b ? a : b;
}

Test(base_cpu, the_best_set_is_what_the_kernel_lists)
{
#if !defined(__x86_64__)
    SKIP("an x86-64 CPU");
#endif
    if (under_valgrind())
        SKIP("the real CPU: valgrind shows its own");
    cr_assert_eq(ask_child(NULL), (int)kernels_answer());
    cr_assert_eq(ask_child(""), (int)kernels_answer());
}

Test(base_cpu, the_mask_is_an_upper_bound)
{
    int best = ask_child(NULL);

    cr_assert_eq(ask_child("c"), HL_ISA_C);
    cr_assert_eq(ask_child("avx2"), lower(HL_ISA_AVX2, best));
    cr_assert_eq(ask_child("avx512"), lower(HL_ISA_AVX512, best));
}

Test(base_cpu, an_unknown_mask_warns_once_and_is_ignored)
{
    cr_assert_eq(ask_child("avx1024"), 16 + ask_child(NULL));
}

Test(base_cpu, names_and_capabilities_agree)
{
    cr_assert_str_eq(hl_isa_name(HL_ISA_C), "c");
    cr_assert_str_eq(hl_isa_name(HL_ISA_NEON), "neon");
    cr_assert_str_eq(hl_isa_name(HL_ISA_AVX2), "avx2");
    cr_assert_str_eq(hl_isa_name(HL_ISA_AVX512), "avx512");
    cr_assert_str_eq(hl_isa_name(HL_NISA), "unknown");
    cr_assert(hl_cpu_has(HL_ISA_C));
    cr_assert(hl_cpu_has((enum hl_isa)ask_child(NULL)));
    cr_assert(!hl_cpu_has(HL_ISA_AVX512) || hl_cpu_has(HL_ISA_AVX2));
}
