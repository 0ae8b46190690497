/* Saving and loading large state costs no memory to speak of. HAUL_TEST_GB: how large; default 2. */
#include "checkpoint_case.h"

#define UNITS 4
#define MIB   (UINT64_C(1) << 20)

static uint64_t status_bytes(const char *key)
{
    char line[256];
    unsigned long long kib = 0;
    FILE *f = fopen("/proc/self/status", "r");

    while (f && fgets(line, sizeof line, f))
        if (strncmp(line, key, strlen(key)) == 0)
            sscanf(line + strlen(key), ": %llu", &kib);
    if (f)
        fclose(f);
    return kib << 10;
}

/* VmHWM counts from here. */
static int forget_peak(void)
{
    FILE *f = fopen("/proc/self/clear_refs", "w");
    int ok = f && fputs("5", f) >= 0;

    return f && fclose(f) == 0 && ok;
}

static uint64_t grown(uint64_t before)
{
    uint64_t peak = status_bytes("VmHWM");

    return peak > before ? peak - before : 0;
}

static void save_and_load(double gb, int background)
{
    struct random_unit units[UNITS];
    struct random_shape shape = {.seed = 1,
                                 .nunits = UNITS,
                                 .unit = units,
                                 .nsteps = 1,
                                 .passes = 1,
                                 .grad_dtype = HAUL_BF16,
                                 .buffer_dtype = HAUL_BF16};
    struct random_place place = {.offload = HAUL_OFFLOAD_ALL, .nthreads = 2, .window = 1};
    struct haul_checkpoint_save_opts opts;
    struct random_run run;
    char root[256];
    uint64_t digest[2];

    for (unsigned i = 0; i < UNITS; i++)
        units[i] = (struct random_unit){.ntensors = 1,
                                        .tensor = {{.elems = (uint64_t)(gb * 1e9 / 12 / UNITS)}}};
    in_dir(root, "root");
    cr_assert_eq(random_open(&run, &shape, &place), 0, "%s", haul_last_error());
    cr_assert_eq(random_step(&run, NULL), 0, "%s", haul_last_error());
    cr_assert_eq(haul_engine_digest(run.engine, &digest[0]), 0);
    if (!forget_peak())
        SKIP("a peak of resident memory that can be reset");
    uint64_t before = status_bytes("VmRSS");
    haul_checkpoint_save_opts_init(&opts);
    opts.background = background;
    cr_assert_eq(haul_checkpoint_save(run.engine, root, &opts), 0, "%s", haul_last_error());
    cr_assert_eq(haul_checkpoint_wait(run.engine), 0, "%s", haul_last_error());
    uint64_t saving = grown(before);
    cr_assert_eq(haul_checkpoint_load(run.engine, root, NULL, NULL), 0, "%s", haul_last_error());
    uint64_t both = grown(before);
    cr_assert_eq(haul_engine_digest(run.engine, &digest[1]), 0);
    cr_assert_eq(digest[0], digest[1]);
    cr_assert_eq(random_close(&run), 0);
    fprintf(stderr, "# %.1f GB of state: saving took %.1f MiB, with loading %.1f MiB\n", gb,
            (double)saving / MIB, (double)both / MIB);
    cr_assert_lt(both, 64 * MIB, "%llu bytes", (unsigned long long)both);
    remove_tree(root);
}

Test(checkpoint_large, saving_and_loading_take_less_than_64_mib)
{
    const char *gb = getenv("HAUL_TEST_GB");

    make_dir();
    for (int background = 0; background < 2; background++)
        save_and_load(gb ? atof(gb) : 2, background);
    remove_dir();
}
