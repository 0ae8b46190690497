/* Reading safetensors: files that the format's own library wrote (tests/fixtures), files written out by
 * hand, and everything that must be refused. */
#include "safetensors_case.h"
#include "sys.h"

#define FIXTURES HAUL_TEST_SOURCES "/fixtures/"

static struct haul_safetensors *opened(const char *path)
{
    struct haul_safetensors *st = NULL;

    cr_assert_eq(haul_safetensors_open(path, &st), 0, "%s", haul_last_error());
    return st;
}

static struct haul_safetensors_info info_of(const struct haul_safetensors *st, const char *name)
{
    struct haul_safetensors_info info = {.struct_size = sizeof info};
    uint64_t i;

    cr_assert_eq(haul_safetensors_find(st, name, &i), 0, "%s", haul_last_error());
    cr_assert_eq(haul_safetensors_get_info(st, i, &info), 0);
    return info;
}

static void same_bits(const struct haul_safetensors *st, const char *name, const uint32_t *want,
                      uint64_t n)
{
    float got[16];
    uint64_t i;

    cr_assert_eq(haul_safetensors_find(st, name, &i), 0);
    cr_assert_eq(haul_safetensors_read(st, i, 0, n, got), 0, "%s", haul_last_error());
    for (uint64_t k = 0; k < n; k++)
        cr_assert_eq(case_bits(got[k]), want[k], "%s[%d] is %08x", name, (int)k, case_bits(got[k]));
}

/* ---- what the format's own library wrote; bits as they went into it ---- */

Test(safetensors, a_file_of_the_formats_own_library_has_its_bits)
{
    static const uint32_t f32[12] = {0x00000000, 0x80000000, 0x3f800000, 0xc0490fdb,
                                     0x00000001, 0x7f7fffff, 0x7f800000, 0xff800000,
                                     0x7fc00000, 0x3f808000, 0x3f818000, 0xbf808001};
    static const uint32_t bf16[11] = {0x00000000, 0x80000000, 0x3f800000, 0xc0490000,
                                      0x00010000, 0x7f7f0000, 0x7f800000, 0xff800000,
                                      0x7fc00000, 0x40000000, 0x3eaa0000};
    /* 0, -0, 1, -3.140625, 2^-24, 1023 * 2^-24, 2^-14, 65504, inf, -inf, NaN, 0.333251953125 */
    static const uint32_t f16[12] = {0x00000000, 0x80000000, 0x3f800000, 0xc0490000,
                                     0x33800000, 0x387fc000, 0x38800000, 0x477fe000,
                                     0x7f800000, 0xff800000, 0x7fc00000, 0x3eaaa000};
    static const uint32_t scalar[1] = {0x422a0000};
    struct haul_safetensors *st = opened(FIXTURES "mixed.safetensors");

    cr_assert_eq(haul_safetensors_count(st), 8);
    same_bits(st, "f32", f32, 12);
    same_bits(st, "bf16", bf16, 11);
    same_bits(st, "f16", f16, 12);
    same_bits(st, "scalar", scalar, 1);
    cr_assert_str_eq(haul_safetensors_metadata(st, "note"), "written by the format's own library");
    cr_assert_null(haul_safetensors_metadata(st, "no such key"));
    haul_safetensors_close(st);
}

Test(safetensors, names_dtypes_and_shapes_are_listed)
{
    struct haul_safetensors *st = opened(FIXTURES "mixed.safetensors");
    struct haul_safetensors_info info = info_of(st, "f16");

    cr_assert_eq(info.ndims, 3);
    cr_assert(info.shape[0] == 2 && info.shape[1] == 1 && info.shape[2] == 6);
    cr_assert_eq(info.nelems, 12);
    cr_assert_eq(info.nbytes, 24);
    cr_assert_eq(info.dtype, HAUL_FP16);
    cr_assert_str_eq(info.dtype_name, "F16");
    cr_assert_str_eq(info.file, FIXTURES "mixed.safetensors");
    cr_assert_eq(info_of(st, "scalar").ndims, 0);
    cr_assert_eq(info_of(st, "empty").nelems, 0);
    cr_assert_eq(info_of(st, "bf16").dtype, HAUL_BF16);
    cr_assert_eq(info_of(st, "na\xc3\xafve \"name\"\n").nelems, 1);
    haul_safetensors_close(st);
}

Test(safetensors, other_dtypes_are_listed_and_not_read)
{
    struct haul_safetensors *st = opened(FIXTURES "mixed.safetensors");
    struct haul_safetensors_info info = info_of(st, "steps");
    float value = 3;
    uint64_t i;

    cr_assert_str_eq(info.dtype_name, "I64");
    cr_assert_eq(info.dtype, HAUL_DTYPE_NONE);
    cr_assert_eq(info.nbytes, 16);
    cr_assert_str_eq(info_of(st, "mask").dtype_name, "BOOL");
    cr_assert_eq(haul_safetensors_find(st, "steps", &i), 0);
    cr_assert_eq(haul_safetensors_read(st, i, 0, 1, &value), -EINVAL);
    cr_assert_not_null(strstr(haul_last_error(), "I64"));
    cr_assert_eq(value, 3, "written although refused");
    haul_safetensors_close(st);
}

static void check_set(const char *path)
{
    static const uint32_t a[6] = {0x00000000, 0x3e800000, 0x3f000000,
                                  0x3f400000, 0x3f800000, 0x3fa00000};
    static const uint32_t c[3] = {0x3f800000, 0x40000000, 0x40400000};
    struct haul_safetensors *st = opened(path);

    cr_assert_eq(haul_safetensors_count(st), 3);
    same_bits(st, "a", a, 6);
    same_bits(st, "c", c, 3);
    cr_assert_not_null(strstr(info_of(st, "c").file, "model-00002-of-00002.safetensors"));
    haul_safetensors_close(st);
}

Test(safetensors, a_set_is_opened_by_its_index_or_by_its_directory)
{
    check_set(FIXTURES "safetensors_set/model.safetensors.index.json");
    check_set(FIXTURES "safetensors_set");
    check_set(FIXTURES "safetensors_set/");
}

Test(safetensors, a_range_is_read_and_one_past_the_end_is_refused)
{
    struct haul_safetensors *st = opened(FIXTURES "mixed.safetensors");
    float got[3] = {9, 9, 9};
    uint64_t i;

    cr_assert_eq(haul_safetensors_find(st, "bf16", &i), 0);
    cr_assert_eq(haul_safetensors_read(st, i, 9, 2, got), 0);
    cr_assert(got[0] == 2 && got[1] == 0x1.54p-2f && got[2] == 9);
    cr_assert_eq(haul_safetensors_read(st, i, 10, 2, got), -EINVAL);
    cr_assert_eq(haul_safetensors_read(st, i, UINT64_MAX, 1, got), -EINVAL);
    cr_assert_eq(haul_safetensors_read(st, i, 1, UINT64_MAX, got), -EINVAL);
    cr_assert_eq(haul_safetensors_read(st, 99, 0, 1, got), -EINVAL);
    cr_assert_eq(got[0], 2, "written although refused");
    haul_safetensors_close(st);
}

Test(safetensors, an_unknown_name_is_answered_with_the_nearest)
{
    struct haul_safetensors *st = opened(FIXTURES "mixed.safetensors");
    uint64_t i = 77;

    cr_assert_eq(haul_safetensors_find(st, "scaler", &i), -ENOENT);
    cr_assert_not_null(strstr(haul_last_error(), "'scalar'"), "%s", haul_last_error());
    cr_assert_eq(i, 77);
    haul_safetensors_close(st);
}

/* ---- refusals ---- */

static void refuses(const char *path, const char *words)
{
    struct haul_safetensors *st = (void *)&st;
    int64_t mem = hl_sys_live(HL_SYS_MEM), fd = hl_sys_live(HL_SYS_FD);

    cr_assert_eq(haul_safetensors_open(path, &st), HAUL_E_FORMAT, "%s was taken", path);
    cr_assert_not_null(strstr(haul_last_error(), words), "'%s' does not say '%s'",
                       haul_last_error(), words);
    cr_assert(st == (void *)&st, "written although refused");
    cr_assert_eq(hl_sys_live(HL_SYS_MEM), mem);
    cr_assert_eq(hl_sys_live(HL_SYS_FD), fd);
}

#define ONE(dtype, shape, from, to)                                                                \
    "{\"x\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":[" #from "," #to "]}}"

Test(safetensors, a_damaged_header_is_refused_by_name)
{
    static const struct {
        const char *json;
        size_t data_bytes;
        const char *words;
    } bad[] = {
        {"", 0, "does not begin with"},
        {" {}", 0, "does not begin with"},
        {"[]", 0, "does not begin with"},
        {"{", 0, "not JSON"},
        {"{}}", 0, "not JSON"},
        {"{\"x\": nan}", 0, "not JSON"},
        {"{\"\xff\": 1}", 0, "not JSON"},
        {"{\"a\\u0000b\": 1}", 0, "not JSON"},
        {"{\"x\":3}", 0, "tensor 'x': no object"},
        {"{\"__metadata__\":[]}", 0, "__metadata__"},
        {"{\"__metadata__\":{\"a\":1}}", 0, "__metadata__"},
        {"{\"x\":{\"dtype\":\"F32\",\"shape\":[]}}", 0, "keys"},
        {"{\"x\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4],\"more\":1}}", 4, "keys"},
        {"{\"x\":{\"dtype\":\"F32\",\"shape\":[],\"data_offset\":[0,4]}}", 4, "keys"},
        {"{\"x\":{\"dtype\":1,\"shape\":[],\"data_offsets\":[0,4]}}", 4, "dtype is no text"},
        {ONE("F31", "[1]", 0, 4), 4, "dtype 'F31' is not known"},
        {ONE("F32", "4", 0, 4), 4, "shape is no list"},
        {ONE("F32", "[1.0]", 0, 4), 4, "shape has an entry"},
        {ONE("F32", "[-1]", 0, 4), 4, "shape has an entry"},
        {ONE("F32", "[\"1\"]", 0, 4), 4, "shape has an entry"},
        {ONE("F32", "[4294967296,4294967296]", 0, 4), 4, "2^64 elements"},
        {ONE("F64", "[9223372036854775807,2]", 0, 4), 4, "2^64 bits"},
        {ONE("F32", "[18446744073709551616]", 0, 4), 4, "not JSON"},
        {ONE("F4", "[3]", 0, 1), 1, "whole bytes"},
        {ONE("F32", "[2]", 0, 4), 4, "take 8"},
        {ONE("F32", "[1]", 4, 0), 4, "end before they begin"},
        {ONE("F32", "[2]", 0, 8), 4, "past the file's 4 bytes"},
        {ONE("F32", "[1]", 0, 4), 5, "1 bytes after the last"},
        {ONE("F32", "[1]", 4, 8), 8, "hole of 4 bytes"},
        {ONE("F32", "[0]", 3, 3), 4, "hole of 3 bytes"},
        {"{}", 7, "7 bytes after the last"},
        {"{\"x\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,-4]}}", 4, "data_offsets"},
        {"{\"x\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4]}}", 4, "data_offsets"},
        {"{\"x\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4,8]}}", 4, "data_offsets"},
        {"{\"x\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4.0]}}", 4, "data_offsets"},
        {"{\"x\":{\"dtype\":\"U8\",\"shape\":[[1]],\"data_offsets\":[0,1]}}", 1, "nested 4 deep"},
        {"{\"x\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},"
         "\"y\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[2,6]}}",
         6, "'x' and 'y' overlap"},
        {"{\"x\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},"
         "\"y\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}",
         4, "overlap"},
        {"{\"x\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},"
         "\"x\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[4,8]}}",
         8, "duplicate"},
    };
    struct tree t = tree_make();

    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        refuses(case_file(&t, "x.safetensors", bad[i].json, bad[i].data_bytes), bad[i].words);
    tree_remove(&t);
}

Test(safetensors, a_length_that_cannot_be_is_refused)
{
    struct tree t = tree_make();
    FILE *f;

    tree_write(&t, "short.safetensors", "1234567");
    refuses(tree_path(&t, "short.safetensors"), "too few");
    tree_write(&t, "text.safetensors", "version https://git-lfs.github.com/spec/v1");
    refuses(tree_path(&t, "text.safetensors"), "no safetensors file");
    case_file(&t, "cut.safetensors", ONE("F32", "[1]", 0, 4), 0);
    cr_assert_eq(truncate(tree_path(&t, "cut.safetensors"), 40), 0);
    refuses(tree_path(&t, "cut.safetensors"), "cut short");
    /* One byte over the format's bound, in a sparse file that could hold it. */
    f = fopen(tree_path(&t, "large.safetensors"), "wb");
    fwrite("\x01\xe1\xf5\x05\0\0\0\0", 1, 8, f);
    cr_assert_eq(ftruncate(fileno(f), 200000000), 0);
    fclose(f);
    refuses(tree_path(&t, "large.safetensors"), "100000001");
    tree_remove(&t);
}

Test(safetensors, control_characters_of_a_name_do_not_reach_the_message)
{
    struct tree t = tree_make();

    refuses(case_file(&t, "x.safetensors", "{\"a\\u001b[2Jb\\n\":1}", 0), "'a?[2Jb?'");
    tree_remove(&t);
}

Test(safetensors, blanks_after_the_header_and_an_empty_file_are_fine)
{
    struct tree t = tree_make();
    struct haul_safetensors *st = opened(case_file(&t, "x.safetensors", "{}      ", 0));

    cr_assert_eq(haul_safetensors_count(st), 0);
    haul_safetensors_close(st);
    st = opened(case_file(&t, "y.safetensors", ONE("F32", "[1,0,7]", 0, 0), 0));
    cr_assert_eq(info_of(st, "x").nelems, 0);
    haul_safetensors_close(st);
    tree_remove(&t);
}

Test(safetensors, what_is_no_file_is_refused)
{
    struct tree t = tree_make();
    struct haul_safetensors *st;

    cr_assert_eq(mkfifo(tree_path(&t, "fifo.safetensors"), 0600), 0);
    refuses(tree_path(&t, "fifo.safetensors"), "not a regular file");
    cr_assert_eq(haul_safetensors_open(tree_path(&t, "absent.safetensors"), &st), -ENOENT);
    cr_assert_not_null(strstr(haul_last_error(), "absent.safetensors"));
    cr_assert_eq(unlink(tree_path(&t, "fifo.safetensors")), 0);
    cr_assert_eq(haul_safetensors_open(t.root, &st), -ENOENT);
    cr_assert_not_null(strstr(haul_last_error(), "has no safetensors file"));
    cr_assert_eq(haul_safetensors_open(NULL, &st), -EINVAL);
    tree_remove(&t);
}

/* ---- sets ---- */

static void make_set(const struct tree *t, const char *index)
{
    case_file(t, "one.safetensors", ONE("F32", "[1]", 0, 4), 4);
    case_file(t, "two.safetensors",
              "{\"y\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4);
    tree_write(t, "all.safetensors.index.json", index);
}

Test(safetensors, an_index_that_does_not_fit_its_files_is_refused)
{
    static const struct {
        const char *index, *words;
    } bad[] = {
        {"{}", "weight_map"},
        {"{\"weight_map\":[]}", "weight_map"},
        {"{\"weight_map\":{\"x\":3}}", "no text"},
        {"{\"weight_map\":{\"x\":\"../one.safetensors\"}}", "no plain name"},
        {"{\"weight_map\":{\"x\":\"/etc/passwd\"}}", "no plain name"},
        {"{\"weight_map\":{\"x\":\"..\"}}", "no plain name"},
        {"{\"weight_map\":{\"x\":\"\"}}", "no plain name"},
        {"{\"weight_map\":{\"x\":\"two.safetensors\"}}", "'x' is not in two.safetensors"},
        {"{\"weight_map\":{\"x\":\"one.safetensors\",\"z\":\"two.safetensors\"}}",
         "'z' is not in two"},
        {"{\"weight_map\":{\"x\":\"one.safetensors\",\"x\":\"two.safetensors\"}}", "duplicate"},
        {"{\"weight_map\":{\"x\":{\"y\":[1]}}}", "nested"},
    };
    struct tree t = tree_make();

    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        make_set(&t, bad[i].index);
        refuses(tree_path(&t, "all.safetensors.index.json"), bad[i].words);
        refuses(t.root, bad[i].words);
    }
    tree_remove(&t);
}

Test(safetensors, a_file_that_the_index_names_and_is_not_there_is_named)
{
    struct haul_safetensors *st;
    struct tree t = tree_make();

    make_set(&t, "{\"weight_map\":{\"x\":\"three.safetensors\"}}");
    cr_assert_eq(haul_safetensors_open(t.root, &st), -ENOENT);
    cr_assert_not_null(strstr(haul_last_error(), "three.safetensors"));
    tree_remove(&t);
}

Test(safetensors, a_directory_without_an_index_is_all_its_files)
{
    struct haul_safetensors *st;
    struct tree t = tree_make();

    make_set(&t, "{}");
    unlink(tree_path(&t, "all.safetensors.index.json"));
    tree_write(&t, "readme.txt", "not one of them");
    st = opened(t.root);
    cr_assert_eq(haul_safetensors_count(st), 2);
    haul_safetensors_close(st);
    case_file(&t, "three.safetensors", ONE("F32", "[1]", 0, 4), 4);
    refuses(t.root, "tensor 'x' is in both");
    case_file(&t, "model.safetensors", "{}", 0);
    st = opened(t.root);
    cr_assert_eq(haul_safetensors_count(st), 0, "model.safetensors comes first");
    haul_safetensors_close(st);
    tree_remove(&t);
}

Test(safetensors, parts_of_a_set_without_their_index_are_refused)
{
    struct tree t = tree_make();

    case_file(&t, "model-00001-of-00002.safetensors", "{}", 0);
    refuses(t.root, "index is missing");
    tree_remove(&t);
}

Test(safetensors, open_unwinds_from_every_failure)
{
    struct haul_safetensors *st = NULL;
    int64_t mem = hl_sys_live(HL_SYS_MEM), fd = hl_sys_live(HL_SYS_FD);
    int rc = -1, n = 1;

    for (; rc < 0; n++) {
        st = NULL;
        hl_sys_fail_nth(n, EMFILE);
        rc = haul_safetensors_open(FIXTURES "safetensors_set", &st);
        if (rc < 0) {
            cr_assert_eq(rc, -EMFILE, "call %d: %d", n, rc);
            cr_assert_null(st);
            cr_assert_eq(hl_sys_live(HL_SYS_MEM), mem, "call %d leaks memory", n);
            cr_assert_eq(hl_sys_live(HL_SYS_FD), fd, "call %d leaks a descriptor", n);
        }
    }
    hl_sys_fail_nth(0, 0);
    cr_assert_gt(n, 25);
    haul_safetensors_close(st);
    cr_assert_eq(hl_sys_live(HL_SYS_MEM), mem);
    cr_assert_eq(hl_sys_live(HL_SYS_FD), fd);
}
