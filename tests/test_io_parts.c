/* test_io_parts.c: the formats and figures of the pager, held against what others say of them. */
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "checksum.h"
#include "manifest.h"
#include "pager_case.h"
#include "wear.h"

/* From xxHash's own sanity test: buffer of a generator, lengths and results with seed 0. */
Test(io_parts, checksums_are_xxh3_as_its_authors_publish_them)
{
    static const struct {
        size_t n;
        uint64_t sum;
    } known[] = {
        {0, 0x2d06800538d394c2},   {1, 0xc44bdff4074eecdb},    {6, 0x27b56a84cd2d7325},
        {12, 0xa713daf0dfbb77e7},  {24, 0xa3fe70bf9d3510eb},   {48, 0x397da259ecba1f11},
        {80, 0xbcdefbbb2c47c90a},  {195, 0xcd94217ee362ec3a},  {403, 0xcdeb804d65c6dea4},
        {512, 0x617e49599013cb6b}, {2048, 0xdd59e2c3a5f038e0},
    };
    unsigned char buf[2048];
    uint64_t g = 2654435761u;

    for (size_t i = 0; i < sizeof buf; i++) {
        buf[i] = (unsigned char)(g >> 56);
        g *= 11400714785074694797ull;
    }
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        cr_assert_eq(hl_checksum(buf, known[i].n), known[i].sum, "%zu bytes", known[i].n);
}

static struct haul_store *open_durable(const char *dir)
{
    struct haul_store_opts o = small_opts(&dir);
    struct haul_store *s = NULL;

    o.durable = 1;
    MUST(hl_store_open_with(&o, &hl_method_threads, &s));
    return s;
}

/* Read by this page alone: 144 bytes of header, 24 an extent, 32 a block, blob, sum. */
Test(io_parts, a_manifest_is_what_its_page_says)
{
    unsigned char *m = memory(2 * BLK), file[4096];
    char dir[128], path[256];
    uint64_t u64, where;
    uint32_t u32;
    ssize_t n;
    int fd;

    cr_assert(place_make(0, dir));
    struct haul_store *s = open_durable(dir);

    MUST(haul_extent_create(s, 3, BLK + 100));
    fill(m, 0, BLK + 100, 1);
    MUST(haul_store_write(s, 3, 0, m, BLK + 100));
    MUST(haul_store_commit(s, 77, "note", 4));
    haul_store_close(s);
    snprintf(path, sizeof path, "%s/manifest.77", dir);
    fd = open(path, O_RDONLY);
    n = read(fd, file, sizeof file);
    close(fd);
    cr_assert_eq(n, 128 + 24 + 2 * 32 + 8 + 8, "%zd", n);
    cr_assert(!memcmp(file, "HAULMNF1", 8));
    memcpy(&u32, file + 12, 4);
    cr_assert_eq(u32, BLK);
    memcpy(&u64, file + 24, 8);
    cr_assert_eq(u64, 77);
    memcpy(&u64, file + n - 8, 8);
    cr_assert_eq(u64, XXH3_64bits(file, (size_t)n - 8));
    cr_assert(!memcmp(file + n - 16, "note\0\0\0\0", 8));
    memcpy(&u64, file + 128 + 24, 8); /* block 0: sum, generation, cell, bytes, dir, slot */
    cr_assert_eq(u64, XXH3_64bits(m, BLK));
    memcpy(&u64, file + 128 + 24 + 32, 8);
    cr_assert_eq(u64, XXH3_64bits(m + BLK, 100));
    memcpy(&u32, file + 128 + 24 + 16, 4);
    where = ((uint64_t)u32 * 2 + file[128 + 24 + 25]) * BLK;
    snprintf(path, sizeof path, "%s/haul.data", dir);
    fd = open(path, O_RDONLY);
    cr_assert_eq(pread(fd, m + BLK, BLK, (off_t)where), (ssize_t)BLK);
    close(fd);
    cr_assert(filled(m + BLK, 0, BLK, 1), "the data stand where cell and slot say");
    place_remove(dir);
}

Test(io_parts, names_that_are_no_manifests_are_left_alone)
{
    static const char *const names[] = {"manifest.", "manifest.x", "manifest.0", "manifest.1x",
                                        "other"};
    char dir[128], path[256];
    uint64_t list[4];
    uint32_t n = 99;

    cr_assert(place_make(0, dir));
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        snprintf(path, sizeof path, "%s/%s", dir, names[i]);
        close(open(path, O_CREAT | O_WRONLY, 0600));
    }
    MUST(haul_store_generations(dir, list, 4, &n));
    cr_assert_eq(n, 0);
    haul_store_close(open_durable(dir));
    cr_assert_geq(place_count(dir), sizeof names / sizeof *names);
    MUST_FAIL(-ENOENT, haul_store_generations("./no/such/dir", list, 4, &n));
    place_remove(dir);
}

/* NVM Express, SMART log: byte 5 percentage used; bytes 48..63 units of 1000 * 512 bytes. */
Test(io_parts, smart_figures_are_read_as_the_specification_says)
{
    uint8_t log[512] = {0};
    struct hl_smart smart;

    log[5] = 3;
    log[48] = 0x40;
    log[49] = 0x42;
    log[50] = 0x0f; /* 1,000,000 units: 512 GB */
    hl_smart_decode(log, &smart);
    cr_assert_eq(smart.written_bytes, 512000000000ull);
    cr_assert_float_eq(smart.used_fraction, 0.03, 1e-12);
    log[5] = 255; /* far past its rating */
    hl_smart_decode(log, &smart);
    cr_assert_float_eq(smart.used_fraction, 2.55, 1e-12);
}

Test(io_parts, life_is_projected_from_what_is_known)
{
    struct hl_smart smart = {.written_bytes = 6000000000000ull, .used_fraction = 0.02};
    struct haul_wear w = {.write_bytes_per_s = 1e9};

    hl_wear_project(&w, &smart, 0, 0); /* 6 TB are 2%: 300 TB altogether, 294 left */
    cr_assert_eq(w.rated_bytes, 300000000000000ull);
    cr_assert_float_eq(w.life_left_s, 294000, 1);
    hl_wear_project(&w, &smart, 600000000000000ull, 0); /* the owner knows better */
    cr_assert_float_eq(w.life_left_s, 588000, 1);
    hl_wear_project(&w, NULL, 600000000000000ull, 60000000000000ull);
    cr_assert_float_eq(w.used_fraction, 0.1, 1e-12);
    cr_assert_float_eq(w.life_left_s, 540000, 1);
    hl_wear_project(&w, NULL, 0, 5);
    cr_assert(w.used_fraction < 0 && w.life_left_s < 0);
    smart.used_fraction = 1.2;
    hl_wear_project(&w, &smart, 0, 0);
    cr_assert_float_eq(w.life_left_s, 0, 1e-9);
}

static void put_file(const char *dir, const char *name, const char *text)
{
    char path[512];
    FILE *f;

    snprintf(path, sizeof path, "%s/%s", dir, name);
    f = fopen(path, "w");
    cr_assert_not_null(f);
    fputs(text, f);
    fclose(f);
}

static void put_dirs(const char *root)
{
    static const char *const dirs[] = {"",
                                       "/dev",
                                       "/dev/block",
                                       "/block",
                                       "/block/nvme1n1",
                                       "/block/nvme1n1/device",
                                       "/block/nvme1n1/queue",
                                       "/block/nvme1n1/nvme1n1p2"};
    char path[512];

    for (size_t i = 0; i < sizeof dirs / sizeof *dirs; i++) {
        snprintf(path, sizeof path, "%s%s", root, dirs[i]);
        mkdir(path, 0700);
    }
}

/* /sys as kernels lay it out: a link to the drive, or to a partition below it. */
Test(io_parts, the_drive_under_a_partition_is_found)
{
    struct haul_wear w;
    char dir[128], path[256];

    cr_assert(place_make(0, dir));
    put_dirs(dir);
    put_file(dir, "block/nvme1n1/device/model", "ACME 9000 PRO 2TB   \n");
    put_file(dir, "block/nvme1n1/queue/rotational", "0\n");
    put_file(dir, "block/nvme1n1/nvme1n1p2/partition", "2\n");
    snprintf(path, sizeof path, "%s/dev/block/259:3", dir);
    cr_assert_eq(symlink("../../block/nvme1n1/nvme1n1p2", path), 0);
    snprintf(path, sizeof path, "%s/dev/block/259:1", dir);
    cr_assert_eq(symlink("../../block/nvme1n1", path), 0);
    for (unsigned minor = 1; minor <= 3; minor += 2) {
        hl_drive_find(dir, 259, minor, &w);
        cr_assert_str_eq(w.device, "nvme1n1");
        cr_assert_str_eq(w.model, "ACME 9000 PRO 2TB");
        cr_assert_eq(w.rotational, 0);
    }
    hl_drive_find(dir, 0, 55, &w); /* tmpfs */
    cr_assert_str_eq(w.device, "");
    cr_assert_eq(w.rotational, -1);
    snprintf(path, sizeof path, "rm -r %s", dir);
    cr_assert_eq(system(path), 0);
}

Test(io_parts, a_profile_sets_block_depths_and_weights)
{
    char dir[128], path[256], text[1024];
    const char *dirs[3];
    struct haul_store_opts o, before;
    double weights[3];

    cr_assert(place_make(0, dir));
    snprintf(text, sizeof text,
             "{\"drives\": [{\"dir\": \"%s\", \"block_bytes\": 2097152, \"read_depth\": 8,"
             " \"write_depth\": 6, \"mixed_gb_per_s\": 6.0}, {\"dir\": \"/mnt/b\","
             " \"block_bytes\": 1048576, \"read_depth\": 4, \"write_depth\": 4,"
             " \"mixed_gb_per_s\": 2.0}]}",
             dir);
    put_file(dir, "profile.json", text);
    snprintf(path, sizeof path, "%s/profile.json", dir);
    haul_store_opts_init(&o);
    before = o;
    dirs[0] = dir;
    dirs[1] = "/mnt/b";
    dirs[2] = "/mnt/unknown";
    o.dirs = dirs;
    o.ndirs = 3;
    MUST(haul_store_opts_profile(&o, path, weights));
    cr_assert_eq(o.block_bytes, 2097152);
    cr_assert_eq(o.read_depth, 12);
    cr_assert_eq(o.write_depth, 10);
    cr_assert_eq(o.dir_weights, weights);
    cr_assert(weights[0] == 6 && weights[1] == 2 && weights[2] == 4);
    o = before;
    o.dirs = dirs + 2;
    o.ndirs = 1;
    MUST(haul_store_opts_profile(&o, path, weights));
    cr_assert(o.block_bytes == before.block_bytes && !o.dir_weights);
    put_file(dir, "profile.json", "{\"drives\": 3}");
    MUST_FAIL(HAUL_E_CONFIG, haul_store_opts_profile(&o, path, weights));
    put_file(dir, "profile.json", "{\"drives\": [");
    MUST_FAIL(HAUL_E_CONFIG, haul_store_opts_profile(&o, path, weights));
    MUST_FAIL(-ENOENT, haul_store_opts_profile(&o, "./no-profile", weights));
    place_remove(dir);
}

Test(io_parts, public_structs_keep_their_layout)
{
    cr_assert_eq(offsetof(struct haul_store_opts, dirs), 8);
    cr_assert_eq(offsetof(struct haul_store_opts, capacity_bytes), 32);
    cr_assert_eq(offsetof(struct haul_store_opts, pool), 64);
    cr_assert_eq(offsetof(struct haul_store_opts, progress), 120);
    cr_assert_eq(sizeof(struct haul_store_opts), 136);
    cr_assert_eq(sizeof(struct haul_io), 64);
    cr_assert_eq(sizeof(struct haul_seg), 16);
}
