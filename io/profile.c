/* profile.c: what `haul tune` measured, as options. */
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "store.h"

/* "drives": [{"dir": "/mnt/nvme0", "block_bytes": n, "read_depth": n, "write_depth": n,
 *             "read_gb_per_s": x, "write_gb_per_s": x, "mixed_gb_per_s": x}, ...] */

static const json_t *find_drive(const json_t *root, const char *dir)
{
    const json_t *drives = json_object_get(root, "drives");
    size_t n = json_array_size(drives);

    for (size_t i = 0; i < n; i++) {
        const json_t *drive = json_array_get(drives, i);
        const char *name = json_string_value(json_object_get(drive, "dir"));
        char a[4096], b[4096];

        if (name &&
            (!strcmp(name, dir) || (realpath(name, a) && realpath(dir, b) && !strcmp(a, b))))
            return drive;
    }
    return NULL;
}

/* 0: absent or not a number. */
static double number(const json_t *drive, const char *key)
{
    return json_number_value(json_object_get(drive, key));
}

static int take_number(const char *path, const json_t *drive, const char *key, double most,
                       uint32_t *out)
{
    double x = number(drive, key);

    if (x == 0)
        return 0;
    if (!(x >= 1 && x <= most))
        return hl_fail(HAUL_E_CONFIG, "%s: %s is %g, at most %g makes sense", path, key, x, most);
    if ((uint32_t)x > *out)
        *out = (uint32_t)x;
    return 0;
}

/* Blocks are one size in a store: the largest that a drive asks for. Depths add up over drives. */
static int take_drive(const char *path, const json_t *drive, struct haul_store_opts *found)
{
    uint32_t depth = 0;
    int rc = take_number(path, drive, "block_bytes", 1u << 30, &found->block_bytes);

    if (rc == 0)
        rc = take_number(path, drive, "read_depth", 1024, &depth);
    found->read_depth += depth;
    depth = 0;
    if (rc == 0)
        rc = take_number(path, drive, "write_depth", 1024, &depth);
    found->write_depth += depth;
    return rc;
}

static int apply(const char *path, const json_t *root, struct haul_store_opts *opts,
                 double *weights)
{
    struct haul_store_opts found = {0};
    uint32_t nfound = 0;
    double sum = 0;
    int rc = 0;

    for (uint32_t i = 0; rc == 0 && i < opts->ndirs; i++) {
        const json_t *drive = find_drive(root, opts->dirs[i]);

        weights[i] = number(drive, "mixed_gb_per_s");
        nfound += weights[i] > 0;
        sum += weights[i];
        if (drive)
            rc = take_drive(path, drive, &found);
    }
    if (rc < 0 || !nfound)
        return rc;
    for (uint32_t i = 0; i < opts->ndirs; i++) /* an unknown drive counts as a middling one */
        weights[i] = weights[i] > 0 ? weights[i] : sum / nfound;
    opts->dir_weights = weights;
    opts->block_bytes = found.block_bytes ? found.block_bytes : opts->block_bytes;
    opts->read_depth = found.read_depth ? found.read_depth : opts->read_depth;
    opts->write_depth = found.write_depth ? found.write_depth : opts->write_depth;
    opts->read_depth = opts->read_depth > 1024 ? 1024 : opts->read_depth;
    opts->write_depth = opts->write_depth > 1024 ? 1024 : opts->write_depth;
    return 0;
}

int haul_store_opts_profile(struct haul_store_opts *opts, const char *path, double *weights)
{
    json_error_t where;
    json_t *root;
    int rc = HL_GIVEN(opts);

    rc = rc ? rc : HL_GIVEN(path);
    rc = rc ? rc : HL_GIVEN(weights);
    rc = rc ? rc : HL_GIVEN(opts->dirs);
    for (uint32_t i = 0; rc == 0 && i < opts->ndirs; i++)
        rc = HL_GIVEN(opts->dirs[i]);
    if (rc < 0)
        return rc;
    if (access(path, R_OK) < 0) {
        rc = -errno;
        return hl_fail(rc, "profile %s: %s", path, haul_strerror(rc));
    }
    root = json_load_file(path, 0, &where);
    if (!root)
        return hl_fail(HAUL_E_CONFIG, "profile %s, line %d: %s", path, where.line, where.text);
    if (!json_is_array(json_object_get(root, "drives")))
        rc = hl_fail(HAUL_E_CONFIG, "%s is not a profile of haul tune: it has no \"drives\"", path);
    else
        rc = apply(path, root, opts, weights);
    json_decref(root);
    return rc;
}
