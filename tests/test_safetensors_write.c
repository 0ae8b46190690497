/* Writing safetensors: rounding, layout, sets, names; every failure leaves what was there. */
#include <dirent.h>
#include <math.h>
#include <signal.h>
#include <sys/wait.h>

#include "safetensors_case.h"
#include "sys.h"

static const uint64_t shape_3[] = {3}, shape_2x2[] = {2, 2}, shape_0[] = {5, 0};

static struct haul_safetensors_writer *writing(const char *path, uint64_t shard_bytes,
                                               const struct haul_safetensors_decl *decls,
                                               uint64_t n)
{
    struct haul_safetensors_writer_opts opts;
    struct haul_safetensors_writer *w = NULL;

    haul_safetensors_writer_opts_init(&opts);
    opts.shard_bytes = shard_bytes;
    cr_assert_eq(haul_safetensors_writer_open(path, &opts, decls, n, &w), 0, "%s",
                 haul_last_error());
    return w;
}

static void put(struct haul_safetensors_writer *w, uint64_t i, uint64_t first, uint64_t n,
                const float *values)
{
    cr_assert_eq(haul_safetensors_writer_put(w, i, first, n, values), 0, "%s", haul_last_error());
}

static void finish(struct haul_safetensors_writer *w)
{
    cr_assert_eq(haul_safetensors_writer_finish(w), 0, "%s", haul_last_error());
    haul_safetensors_writer_close(w);
}

/* One FP32 tensor "x" of three values. */
static void write_x(const char *path, float a)
{
    const struct haul_safetensors_decl x = {"x", HAUL_FP32, 1, shape_3};
    const float values[3] = {a, a + 1, a + 2};
    struct haul_safetensors_writer *w = writing(path, 0, &x, 1);

    put(w, 0, 0, 3, values);
    finish(w);
}

static float first_of(const struct haul_safetensors *st, const char *name)
{
    float value;
    uint64_t i;

    cr_assert_eq(haul_safetensors_find(st, name, &i), 0, "%s", haul_last_error());
    cr_assert_eq(haul_safetensors_read(st, i, 0, 1, &value), 0, "%s", haul_last_error());
    return value;
}

static float first_in(const char *path, const char *name)
{
    struct haul_safetensors *st;
    float value;

    cr_assert_eq(haul_safetensors_open(path, &st), 0, "%s", haul_last_error());
    value = first_of(st, name);
    haul_safetensors_close(st);
    return value;
}

/* How many names of the directory end so. */
static int count_names(const char *dir, const char *end)
{
    DIR *d = opendir(dir);
    struct dirent *e;
    int n = 0;

    cr_assert_not_null(d);
    while ((e = readdir(d))) {
        size_t len = strlen(e->d_name), m = strlen(end);

        n += e->d_name[0] != '.' && len >= m && !strcmp(e->d_name + len - m, end);
    }
    closedir(d);
    return n;
}

/* ---- values ---- */

Test(safetensors_write, fp32_keeps_every_bit)
{
    static const uint32_t bits[] = {0,          0x80000000, 1,          0x807fffff,
                                    0x7f7fffff, 0x7f800000, 0xff800000, 0x7fc00000,
                                    0xffc12345, 0x7f800001, 0x3f808000, 0xbf818001};
    enum { N = sizeof bits / sizeof *bits };
    const uint64_t shape[] = {N};
    const struct haul_safetensors_decl x = {"x", HAUL_FP32, 1, shape};
    struct tree t = tree_make();
    const char *path = tree_path(&t, "x.safetensors");
    struct haul_safetensors_writer *w = writing(path, 0, &x, 1);
    struct haul_safetensors *st;
    float values[N], back[N];

    memcpy(values, bits, sizeof bits);
    put(w, 0, 0, 5, values);
    put(w, 0, 5, 0, NULL);
    put(w, 0, 5, N - 5, values + 5);
    finish(w);
    cr_assert_eq(haul_safetensors_open(path, &st), 0);
    cr_assert_eq(haul_safetensors_read(st, 0, 0, N, back), 0);
    cr_assert_eq(memcmp(back, bits, sizeof bits), 0);
    haul_safetensors_close(st);
    tree_remove(&t);
}

/* The 16 bits that half away from zero and half to even make, worked in double precision. */
static uint16_t away_bf16(float x)
{
    int e;
    double m = frexp(fabs(x), &e) * 256; /* 8 significant bits: 128 <= m < 256 */
    double r = floor(m + 0.5);
    float y = (float)copysign(ldexp(r, e - 8), x);

    return (uint16_t)(case_bits(y) >> 16);
}

Test(safetensors_write, bf16_is_rounded_half_away_from_zero_as_parameters_are_published)
{
    enum { N = 4099 };
    const uint64_t shape[] = {N};
    const struct haul_safetensors_decl x = {"x", HAUL_BF16, 1, shape};
    struct tree t = tree_make();
    const char *path = tree_path(&t, "x.safetensors");
    struct haul_safetensors_writer *w = writing(path, 0, &x, 1);
    struct haul_safetensors *st;
    static float values[N], back[N];

    for (int i = 0; i < N; i++) {
        uint32_t bits = 0x3f700000u + (uint32_t)i * 0x1000u + (i % 3 == 0 ? 0x8000u : (uint32_t)i);

        bits |= i % 2 ? 0x80000000u : 0;
        memcpy(&values[i], &bits, 4);
    }
    for (int i = 0; i < N; i += 1000)
        put(w, 0, (uint64_t)i, N - i < 1000 ? N - i : 1000, values + i);
    finish(w);
    cr_assert_eq(haul_safetensors_open(path, &st), 0);
    cr_assert_eq(haul_safetensors_read(st, 0, 0, N, back), 0);
    for (int i = 0; i < N; i++)
        cr_assert_eq(case_bits(back[i]), (uint32_t)away_bf16(values[i]) << 16, "%a", values[i]);
    haul_safetensors_close(st);
    tree_remove(&t);
}

Test(safetensors_write, fp16_is_rounded_half_to_even)
{
    /* 1 + 2^-11 is a tie, down to 1; 1 + 3 * 2^-11 is one, up to 1 + 2^-9; 65520 is infinite */
    static const float values[4] = {1 + 0x1p-11f, 1 + 0x3p-11f, -65519, 65520};
    static const float want[4] = {1, 1 + 0x1p-9f, -65504, INFINITY};
    const struct haul_safetensors_decl x = {"x", HAUL_FP16, 2, shape_2x2};
    struct tree t = tree_make();
    const char *path = tree_path(&t, "x.safetensors");
    struct haul_safetensors_writer *w = writing(path, 0, &x, 1);
    struct haul_safetensors *st;
    float back[4];

    put(w, 0, 0, 4, values);
    finish(w);
    cr_assert_eq(haul_safetensors_open(path, &st), 0);
    cr_assert_eq(haul_safetensors_read(st, 0, 0, 4, back), 0);
    cr_assert_eq(memcmp(back, want, sizeof want), 0);
    haul_safetensors_close(st);
    tree_remove(&t);
}

Test(safetensors_write, data_is_aligned_dense_and_wide_elements_come_first)
{
    const struct haul_safetensors_decl decls[] = {{"h", HAUL_BF16, 1, shape_3},
                                                  {"f", HAUL_FP32, 1, shape_3},
                                                  {"none", HAUL_FP16, 2, shape_0},
                                                  {"one", HAUL_FP32, 0, NULL}};
    struct haul_safetensors_info info = {.struct_size = sizeof info};
    static const char *const order[] = {"f", "one", "none", "h"};
    const float values[3] = {1, 2, 3};
    struct tree t = tree_make();
    const char *path = tree_path(&t, "x.safetensors");
    struct haul_safetensors_writer *w = writing(path, 0, decls, 4);
    struct haul_safetensors *st;
    unsigned char length[8];
    FILE *f;

    put(w, 0, 0, 3, values);
    put(w, 3, 0, 1, values);
    put(w, 1, 0, 3, values);
    finish(w);
    f = fopen(path, "rb");
    cr_assert_eq(fread(length, 1, 8, f), 8);
    cr_assert_eq((length[0] + 256 * length[1] + 8) % 64, 0);
    fseek(f, 0, SEEK_END);
    cr_assert_eq(ftell(f), length[0] + 256 * length[1] + 8 + 12 + 4 + 6);
    fclose(f);
    cr_assert_eq(haul_safetensors_open(path, &st), 0, "%s", haul_last_error());
    cr_assert_eq(haul_safetensors_count(st), 4);
    for (uint64_t i = 0; i < 4; i++) {
        cr_assert_eq(haul_safetensors_get_info(st, i, &info), 0);
        /* the empty one lies where "h" begins, and either may be listed first */
        cr_assert(i >= 2 || !strcmp(info.name, order[i]), "%s", info.name);
    }
    cr_assert_str_eq(haul_safetensors_metadata(st, "format"), "pt");
    haul_safetensors_close(st);
    tree_remove(&t);
}

/* ---- refusals ---- */

Test(safetensors_write, declarations_that_cannot_be_are_refused_by_name)
{
    static const uint64_t huge[] = {1ull << 32, 1ull << 32};
    static const struct {
        struct haul_safetensors_decl decl[2];
        uint64_t n;
        int rc;
        const char *words;
    } bad[] = {
        {{{NULL, HAUL_FP32, 0, NULL}}, 1, -EINVAL, "no name"},
        {{{"__metadata__", HAUL_FP32, 0, NULL}}, 1, -EINVAL, "keeps this name"},
        {{{"x", HAUL_DTYPE_NONE, 0, NULL}}, 1, -EINVAL, "dtype"},
        {{{"x", HAUL_FP32, 1, NULL}}, 1, -EINVAL, "shape is NULL"},
        {{{"x", HAUL_FP32, 2, huge}}, 1, -EOVERFLOW, "2^60"},
        {{{"\xff", HAUL_FP32, 0, NULL}}, 1, -EINVAL, "UTF-8"},
        {{{"x", HAUL_FP32, 0, NULL}, {"x", HAUL_BF16, 0, NULL}}, 2, -EINVAL, "declared twice"},
    };
    struct haul_safetensors_writer *w = NULL;
    struct tree t = tree_make();
    const char *path = tree_path(&t, "x.safetensors");

    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        cr_assert_eq(haul_safetensors_writer_open(path, NULL, bad[i].decl, bad[i].n, &w),
                     bad[i].rc);
        cr_assert_not_null(strstr(haul_last_error(), bad[i].words), "%s", haul_last_error());
        cr_assert_null(w);
    }
    cr_assert_eq(haul_safetensors_writer_open(tree_path(&t, "x.bin"), NULL, NULL, 0, &w), -EINVAL);
    cr_assert_not_null(strstr(haul_last_error(), ".safetensors"));
    cr_assert_eq(haul_safetensors_writer_open(tree_path(&t, "no/x.safetensors"), NULL, NULL, 0, &w),
                 -ENOENT);
    cr_assert_eq(count_names(t.root, ""), 0, "something was left behind");
    tree_remove(&t);
}

Test(safetensors_write, values_come_in_order_and_all_of_them)
{
    const struct haul_safetensors_decl x = {"x", HAUL_FP32, 1, shape_3};
    const float values[4] = {1, 2, 3, 4};
    struct tree t = tree_make();
    struct haul_safetensors_writer *w = writing(tree_path(&t, "x.safetensors"), 0, &x, 1);

    cr_assert_eq(haul_safetensors_writer_put(w, 0, 1, 1, values), -EINVAL);
    cr_assert_eq(haul_safetensors_writer_put(w, 0, 0, 4, values), -EINVAL);
    cr_assert_eq(haul_safetensors_writer_put(w, 1, 0, 1, values), -EINVAL);
    put(w, 0, 0, 2, values);
    cr_assert_eq(haul_safetensors_writer_put(w, 0, 0, 2, values), -EINVAL);
    cr_assert_eq(haul_safetensors_writer_finish(w), HAUL_E_STATE);
    cr_assert_not_null(strstr(haul_last_error(), "'x' has 2 of its 3"), "%s", haul_last_error());
    put(w, 0, 2, 1, values);
    cr_assert_eq(haul_safetensors_writer_finish(w), 0);
    cr_assert_eq(haul_safetensors_writer_finish(w), HAUL_E_STATE);
    cr_assert_eq(haul_safetensors_writer_put(w, 0, 3, 0, values), HAUL_E_STATE);
    haul_safetensors_writer_close(w);
    tree_remove(&t);
}

/* ---- names ---- */

Test(safetensors_write, saving_over_a_file_that_is_being_read_is_safe)
{
    struct tree t = tree_make();
    const char *path = tree_path(&t, "x.safetensors");
    struct haul_safetensors *st;

    write_x(path, 1);
    cr_assert_eq(haul_safetensors_open(path, &st), 0);
    write_x(path, 10);
    cr_assert_eq(first_of(st, "x"), 1, "the old values, for who has it open");
    cr_assert_eq(first_in(path, "x"), 10);
    haul_safetensors_close(st);
    cr_assert_eq(count_names(t.root, ""), 1);
    tree_remove(&t);
}

Test(safetensors_write, nothing_is_seen_before_finish_or_left_without_it)
{
    const struct haul_safetensors_decl x = {"x", HAUL_FP32, 1, shape_3};
    struct tree t = tree_make();
    const char *path = tree_path(&t, "x.safetensors");
    struct haul_safetensors_writer *w = writing(path, 0, &x, 1);

    cr_assert_not(case_exists(path));
    haul_safetensors_writer_close(w);
    cr_assert_eq(count_names(t.root, ""), 0);
    haul_safetensors_writer_close(NULL);
    tree_remove(&t);
}

/* Four tensors of 12 bytes, 24 in a file: two files. */
static struct haul_safetensors_writer *writing_set(const char *path, float a)
{
    static const char *const names[] = {"p", "q", "r", "s"};
    struct haul_safetensors_decl decls[4];
    struct haul_safetensors_writer *w;

    for (int i = 0; i < 4; i++)
        decls[i] = (struct haul_safetensors_decl){names[i], HAUL_FP32, 1, shape_3};
    w = writing(path, 24, decls, 4);
    for (int i = 0; i < 4; i++) {
        const float values[3] = {a + (float)i, 0, 0};

        put(w, (uint64_t)i, 0, 3, values);
    }
    return w;
}

Test(safetensors_write, a_set_has_files_of_the_size_asked_for_and_an_index)
{
    struct tree t = tree_make();
    const char *path = tree_path(&t, "model.safetensors");
    struct haul_safetensors_info info = {.struct_size = sizeof info};
    struct haul_safetensors *st;

    finish(writing_set(path, 1));
    cr_assert(case_exists(tree_path(&t, "model-00001-of-00002.safetensors")));
    cr_assert(case_exists(tree_path(&t, "model-00002-of-00002.safetensors")));
    cr_assert_eq(count_names(t.root, ""), 3);
    cr_assert_eq(haul_safetensors_open(t.root, &st), 0, "%s", haul_last_error());
    cr_assert_eq(haul_safetensors_count(st), 4);
    cr_assert_eq(first_of(st, "s"), 4);
    cr_assert_eq(haul_safetensors_get_info(st, 2, &info), 0);
    cr_assert_str_eq(info.name, "r");
    cr_assert_not_null(strstr(info.file, "00002-of"));
    haul_safetensors_close(st);
    tree_remove(&t);
}

Test(safetensors_write, a_file_and_a_set_of_one_path_replace_each_other)
{
    struct tree t = tree_make();
    const char *path = tree_path(&t, "model.safetensors");

    finish(writing_set(path, 1));
    write_x(path, 7);
    cr_assert_eq(first_in(t.root, "x"), 7);
    cr_assert_eq(count_names(t.root, "index.json"), 0);
    finish(writing_set(path, 20));
    cr_assert_eq(first_in(t.root, "p"), 20);
    cr_assert_not(case_exists(path));
    tree_remove(&t);
}

/* ---- large ones ---- */

/* Bytes of this process in memory. */
static uint64_t resident_bytes(void)
{
    unsigned long long pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");

    cr_assert_not_null(f);
    cr_assert_eq(fscanf(f, "%*u %llu", &pages), 1);
    fclose(f);
    return pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

Test(safetensors_write, memory_does_not_grow_with_the_file)
{
    enum { N = 24 << 20, PIECE = 1 << 16 };
    const uint64_t shape[] = {N};
    const struct haul_safetensors_decl decls[] = {{"w", HAUL_FP32, 1, shape},
                                                  {"h", HAUL_BF16, 1, shape}};
    struct tree t = tree_make();
    const char *path = tree_path(&t, "x.safetensors");
    static float values[PIECE];
    struct haul_safetensors_writer *w;
    struct haul_safetensors *st;
    uint64_t before;

    memset(values, 0x3e, sizeof values);
    before = resident_bytes();
    w = writing(path, 0, decls, 2);
    for (uint64_t i = 0; i < 2; i++)
        for (uint64_t first = 0; first < N; first += PIECE)
            put(w, i, first, PIECE, values);
    finish(w);
    cr_assert_eq(haul_safetensors_open(path, &st), 0);
    for (uint64_t i = 0; i < 2; i++)
        for (uint64_t first = 0; first < N; first += PIECE)
            cr_assert_eq(haul_safetensors_read(st, i, first, PIECE, values), 0);
    haul_safetensors_close(st);
    tree_remove(&t);
    cr_assert_lt(resident_bytes(), before + (8 << 20), "144 MB were written and read");
}

Test(safetensors_write, a_full_drive_is_found_at_open)
{
    const uint64_t shape[] = {1ull << 45};
    const struct haul_safetensors_decl x = {"x", HAUL_FP32, 1, shape};
    struct haul_safetensors_writer *w = NULL;
    struct tree t = tree_make();
    int rc = haul_safetensors_writer_open(tree_path(&t, "x.safetensors"), NULL, &x, 1, &w);

    cr_assert(rc == -ENOSPC || rc == -EFBIG, "%d: room for 2^47 bytes?", rc);
    cr_assert_null(w);
    cr_assert_eq(count_names(t.root, ""), 0);
    tree_remove(&t);
}

/* ---- failures ---- */

/* Save over and over again, without end. */
static void save_for_ever(const char *path)
{
    for (float a = 1;; a++) {
        const struct haul_safetensors_decl x = {"x", HAUL_FP32, 1, shape_3};
        const float values[3] = {a, a, a};
        struct haul_safetensors_writer *w;

        if (haul_safetensors_writer_open(path, NULL, &x, 1, &w) < 0 ||
            haul_safetensors_writer_put(w, 0, 0, 3, values) < 0 ||
            haul_safetensors_writer_finish(w) < 0)
            _exit(1);
        haul_safetensors_writer_close(w);
    }
}

Test(safetensors_write, a_kill_at_any_instant_leaves_a_whole_file)
{
    struct tree t = tree_make();
    const char *path = tree_path(&t, "x.safetensors");

    write_x(path, 0.5f);
    for (unsigned i = 0; i < 30; i++) {
        struct haul_safetensors *st;
        float values[3];
        pid_t child = fork();

        if (child == 0)
            save_for_ever(path);
        usleep(1000 + i * 977 % 7000);
        kill(child, SIGKILL);
        cr_assert_eq(waitpid(child, NULL, 0), child);
        cr_assert_eq(haul_safetensors_open(path, &st), 0, "%s", haul_last_error());
        cr_assert_eq(haul_safetensors_read(st, 0, 0, 3, values), 0);
        if (values[1] != values[0]) /* the one from before the first child */
            cr_assert(values[0] == 0.5f && values[1] == 1.5f && values[2] == 2.5f);
        else
            cr_assert(values[0] >= 1 && values[2] == values[0]);
        haul_safetensors_close(st);
    }
    tree_remove(&t);
}

/* 0 once nothing failed. Whatever fails, what was there before is there and whole. */
static int save_with_failure(const struct tree *t, int64_t n)
{
    const struct haul_safetensors_decl x = {"x", HAUL_BF16, 1, shape_3};
    const float values[3] = {2, 2, 2};
    struct haul_safetensors_writer *w = NULL;
    int rc;

    hl_sys_fail_nth(n, ENOSPC);
    rc = haul_safetensors_writer_open(tree_path(t, "x.safetensors"), NULL, &x, 1, &w);
    cr_assert((rc < 0) == (w == NULL));
    if (rc == 0)
        rc = haul_safetensors_writer_put(w, 0, 0, 3, values);
    if (rc == 0)
        rc = haul_safetensors_writer_finish(w);
    cr_assert(rc == 0 || rc == -ENOSPC, "call %d: %d", (int)n, rc);
    cr_assert(rc == 0 || strstr(haul_last_error(), "injected"), "%s", haul_last_error());
    haul_safetensors_writer_close(w);
    hl_sys_fail_nth(0, 0);
    return rc;
}

Test(safetensors_write, a_failed_save_leaves_the_old_file_and_nothing_else)
{
    int64_t mem = hl_sys_live(HL_SYS_MEM), fd = hl_sys_live(HL_SYS_FD);
    struct tree t = tree_make();
    float now;
    int n = 1;

    write_x(tree_path(&t, "x.safetensors"), 1);
    while (save_with_failure(&t, n) < 0) {
        now = first_in(tree_path(&t, "x.safetensors"), "x");
        cr_assert(now == 1 || now == 2, "neither the old file nor the new one");
        cr_assert_eq(count_names(t.root, ""), 1, "call %d leaves a file", n);
        cr_assert_eq(hl_sys_live(HL_SYS_MEM), mem, "call %d leaks memory", n);
        cr_assert_eq(hl_sys_live(HL_SYS_FD), fd, "call %d leaks a descriptor", n);
        n++;
    }
    cr_assert_gt(n, 15);
    cr_assert_eq(first_in(tree_path(&t, "x.safetensors"), "x"), 2);
    tree_remove(&t);
}

Test(safetensors_write, a_set_whose_names_were_cut_short_is_never_a_mixture)
{
    struct tree t = tree_make();
    const char *path = tree_path(&t, "model.safetensors");
    struct haul_safetensors *st;
    int rc = -1, n = 1;

    finish(writing_set(path, 1));
    for (; rc < 0; n++) {
        struct haul_safetensors_writer *w = writing_set(path, 100);

        hl_sys_fail_nth(n, EIO);
        rc = haul_safetensors_writer_finish(w);
        hl_sys_fail_nth(0, 0);
        haul_safetensors_writer_close(w);
        cr_assert_eq(count_names(t.root, "tmp"), 0, "call %d leaves a file", n);
        if (haul_safetensors_open(t.root, &st) == 0) {
            cr_assert_eq(first_of(st, "s") - first_of(st, "p"), 3, "call %d: half old, half new",
                         n);
            haul_safetensors_close(st);
        } else {
            cr_assert_not_null(strstr(haul_last_error(), "index is missing"), "%s",
                               haul_last_error());
        }
    }
    cr_assert_gt(n, 10);
    cr_assert_eq(first_in(t.root, "p"), 100);
    tree_remove(&t);
}
