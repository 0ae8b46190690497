/* ckpt_manifest.c: a manifest as text, and back. */
#include "ckpt_manifest.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "checksum.h"
#include "fail.h"
#include "json_text.h"
#include "sys.h"
#include "sys_file.h"

#define FORMAT     "haul checkpoint"
#define DEPTH      8
#define MOST_BYTES ((size_t)1 << 28)

/* The last lines: the sum of everything before them. */
#define TAIL_BEFORE ",\n \"xxh3\": \""
#define TAIL_AFTER  "\"\n}\n"
#define TAIL_BYTES  (sizeof TAIL_BEFORE - 1 + 16 + sizeof TAIL_AFTER - 1)

void hl_ckpt_file_name(uint32_t rank, char name[HL_CKPT_FILE_NAME_BYTES])
{
    snprintf(name, HL_CKPT_FILE_NAME_BYTES, "rank-%05u.bin", rank);
}

int hl_ckpt_publish(int dirfd, const char *name, const void *data, size_t bytes)
{
    char temp[64];
    int fd, rc;

    snprintf(temp, sizeof temp, "%s.tmp", name);
    fd = hl_sys_open(dirfd, temp, O_WRONLY | O_CREAT | O_TRUNC, 0666);
    if (fd < 0)
        return fd;
    rc = hl_sys_pwrite_all(fd, data, bytes, 0);
    if (rc == 0)
        rc = hl_sys_fsync(fd);
    hl_sys_close(fd);
    if (rc == 0)
        rc = hl_sys_rename(dirfd, temp, name);
    if (rc < 0) {
        char text[HL_ERROR_TEXT_BYTES];
        snprintf(text, sizeof text, "%s", haul_last_error());
        (void)hl_sys_unlink(dirfd, temp);
        return hl_fail_text(rc, text);
    }
    return hl_sys_fsync(dirfd);
}

/* ---- writing ---- */

static json_t *hex(uint64_t value)
{
    char text[17];

    snprintf(text, sizeof text, "%016" PRIx64, value);
    return json_string(text);
}

static json_t *count(uint64_t value)
{
    return json_integer((json_int_t)value);
}

static json_t *tensor_json(const struct haul_tensor *t)
{
    json_t *shape = json_array();

    for (uint32_t d = 0; d < t->ndims; d++)
        json_array_append_new(shape, count(t->shape[d]));
    return json_pack("{s:s, s:s, s:o, s:b}", "name", t->name, "dtype", hl_ckpt_dtype_name(t->dtype),
                     "shape", shape, "frozen", t->frozen != 0);
}

static json_t *unit_json(const struct hl_ckpt_unit *u)
{
    json_t *tensors = json_array();

    for (uint32_t t = 0; t < u->ntensors; t++)
        json_array_append_new(tensors, tensor_json(&u->tensors[t]));
    return json_pack("{s:s, s:o, s:o}", "name", u->name, "updates", count(u->nsteps), "tensors",
                     tensors);
}

static json_t *file_json(const struct hl_ckpt_file *f, uint32_t rank)
{
    char name[HL_CKPT_FILE_NAME_BYTES];

    hl_ckpt_file_name(rank, name);
    return json_pack("{s:s, s:o, s:o, s:o}", "name", name, "bytes", count(f->bytes), "blocks",
                     count(f->nblocks), "table_xxh3", hex(f->table_sum));
}

static json_t *manifest_json(const struct hl_ckpt_manifest *m)
{
    json_t *units = json_array(), *files = json_array();

    for (uint32_t i = 0; i < m->model.nunits; i++)
        json_array_append_new(units, unit_json(&m->model.units[i]));
    for (uint32_t r = 0; r < m->nranks; r++)
        json_array_append_new(files, file_json(&m->files[r], r));
    return json_pack("{s:s, s:i, s:o, s:o, s:o, s:{s:f, s:i}, s:{s:o, s:o}, s:o, s:o}", "format",
                     FORMAT, "version", (int)m->version, "id", hex(m->id), "serial",
                     count(m->serial), "step", count(m->step), "loss_scale", "scale", m->loss_scale,
                     "finite_steps", (int)m->nsteps_finite, "user", "bytes", count(m->user_bytes),
                     "xxh3", hex(m->user_sum), "files", files, "units", units);
}

/* The object's text, its last brace replaced by the tail. */
static int encode(json_t *root, void **out, size_t *bytes)
{
    size_t flags = JSON_INDENT(1), n = json_dumpb(root, NULL, 0, flags);
    char tail[TAIL_BYTES + 1];
    void *mem;
    char *p;
    int rc = hl_sys_alloc(n + sizeof tail, &mem);

    if (rc < 0)
        return rc;
    p = mem;
    if (n < 2 || json_dumpb(root, p, n, flags) != n) {
        hl_sys_free(mem);
        return hl_fail(-ENOMEM, "checkpoint: out of memory for the manifest");
    }
    n -= 2; /* "\n}" */
    snprintf(tail, sizeof tail, TAIL_BEFORE "%016" PRIx64 TAIL_AFTER, hl_checksum(p, n));
    memcpy(p + n, tail, TAIL_BYTES);
    *out = mem;
    *bytes = n + TAIL_BYTES;
    return 0;
}

int hl_ckpt_manifest_write(int dirfd, const struct hl_ckpt_manifest *m)
{
    json_t *root;
    size_t bytes = 0;
    void *text = NULL;
    int rc = hl_sys_attempt("make JSON");

    if (rc < 0)
        return rc;
    root = manifest_json(m);
    if (!root)
        return hl_fail(-EINVAL, "checkpoint: a name of a unit or tensor is not UTF-8, which the "
                                "manifest needs");
    rc = encode(root, &text, &bytes);
    json_decref(root);
    if (rc < 0)
        return rc;
    rc = hl_ckpt_publish(dirfd, HL_CKPT_MANIFEST, text, bytes);
    hl_sys_free(text);
    return rc;
}

/* ---- reading ---- */

/* Of a file nobody vouches for: every getter refuses what is not there or of another type. */
struct reader {
    const char *what;
    int rc; /* the first refusal */
};

static int refuse(struct reader *r, const char *key, const char *why)
{
    if (r->rc == 0)
        r->rc = hl_fail(HAUL_E_FORMAT, "%s: \"%s\": %s", r->what, key, why);
    return r->rc;
}

static json_t *get(struct reader *r, const json_t *from, const char *key, int type)
{
    json_t *value = json_object_get(from, key);

    if (value && (int)json_typeof(value) == type)
        return value;
    refuse(r, key, value ? "of another type than it should be" : "missing");
    return NULL;
}

static uint64_t get_count(struct reader *r, const json_t *from, const char *key, uint64_t most)
{
    json_t *value = get(r, from, key, JSON_INTEGER);
    json_int_t n = value ? json_integer_value(value) : 0;

    if (n < 0 || (uint64_t)n > most) {
        refuse(r, key, "out of range");
        return 0;
    }
    return (uint64_t)n;
}

static uint64_t read_hex(struct reader *r, const char *key, const char *text)
{
    uint64_t value = 0;

    if (strlen(text) != 16 || strspn(text, "0123456789abcdef") != 16) {
        refuse(r, key, "not 16 hexadecimal digits");
        return 0;
    }
    for (const char *c = text; *c; c++)
        value = value << 4 | (uint64_t)(*c <= '9' ? *c - '0' : *c - 'a' + 10);
    return value;
}

static uint64_t get_hex(struct reader *r, const json_t *from, const char *key)
{
    json_t *value = get(r, from, key, JSON_STRING);

    return value ? read_hex(r, key, json_string_value(value)) : 0;
}

static const char *get_name(struct reader *r, const json_t *from, const char *key)
{
    json_t *value = get(r, from, key, JSON_STRING);
    const char *text = value ? json_string_value(value) : "";

    if (value && (!*text || strlen(text) != json_string_length(value)))
        refuse(r, key, "empty, or with a NUL in it");
    return text;
}

static enum haul_dtype get_dtype(struct reader *r, const json_t *from)
{
    static const enum haul_dtype dtypes[] = {HAUL_FP32, HAUL_BF16, HAUL_FP16};
    const char *name = get_name(r, from, "dtype");

    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++)
        if (strcmp(name, hl_ckpt_dtype_name(dtypes[i])) == 0)
            return dtypes[i];
    refuse(r, "dtype", "none of fp32, bf16, fp16");
    return HAUL_FP32;
}

static void read_tensor(struct reader *r, const json_t *from, struct haul_tensor *out)
{
    json_t *shape, *frozen;

    *out = (struct haul_tensor){.name = get_name(r, from, "name"), .dtype = get_dtype(r, from)};
    shape = get(r, from, "shape", JSON_ARRAY);
    frozen = json_object_get(from, "frozen");
    if (!json_is_boolean(frozen))
        refuse(r, "frozen", "neither true nor false");
    out->frozen = json_is_true(frozen);
    out->ndims = (uint32_t)json_array_size(shape);
    if (out->ndims < 1 || json_array_size(shape) > HAUL_MAX_DIMS) {
        refuse(r, "shape", "not of 1 to 4 dimensions");
        return;
    }
    for (uint32_t d = 0; d < out->ndims; d++) {
        json_t *n = json_array_get(shape, d);
        if (!json_is_integer(n) || json_integer_value(n) < 0)
            refuse(r, "shape", "a dimension is no count");
        else
            out->shape[d] = (uint64_t)json_integer_value(n);
    }
}

static void read_unit(struct reader *r, const json_t *from, struct hl_ckpt_model *model)
{
    const char *name = get_name(r, from, "name");
    uint64_t nsteps = get_count(r, from, "updates", INT64_MAX);
    json_t *list = get(r, from, "tensors", JSON_ARRAY);
    struct haul_tensor *tensors;
    uint32_t n = (uint32_t)json_array_size(list);
    int rc;

    if (r->rc < 0)
        return;
    rc = hl_sys_alloc_array(n, sizeof *tensors, (void **)&tensors);
    if (rc < 0) {
        r->rc = rc;
        return;
    }
    for (uint32_t t = 0; r->rc == 0 && t < n; t++)
        read_tensor(r, json_array_get(list, t), &tensors[t]);
    if (r->rc == 0)
        r->rc = hl_ckpt_model_add(model, name, nsteps, tensors, n);
    if (r->rc == -EOVERFLOW)
        r->rc = hl_fail(HAUL_E_FORMAT, "%s: unit %s has more than 2^58 elements", r->what, name);
    hl_sys_free(tensors);
}

static void read_file(struct reader *r, const json_t *from, uint32_t rank, struct hl_ckpt_file *out)
{
    char name[HL_CKPT_FILE_NAME_BYTES];

    hl_ckpt_file_name(rank, name);
    if (strcmp(get_name(r, from, "name"), name) != 0)
        refuse(r, "files", "not named rank-00000.bin, rank-00001.bin and so on");
    out->bytes = get_count(r, from, "bytes", INT64_MAX);
    out->nblocks = get_count(r, from, "blocks", INT64_MAX / sizeof(struct hl_ckpt_block));
    out->table_sum = get_hex(r, from, "table_xxh3");
}

static void read_files(struct reader *r, const json_t *root, struct hl_ckpt_manifest *m)
{
    json_t *files = get(r, root, "files", JSON_ARRAY);
    size_t n = json_array_size(files);

    if (n == 0 || n > HL_CKPT_MOST_RANKS)
        refuse(r, "files", "1 to 65536 of them");
    if (r->rc == 0)
        r->rc = hl_sys_alloc_array(n, sizeof *m->files, (void **)&m->files);
    if (r->rc < 0)
        return;
    m->nranks = (uint32_t)n;
    for (uint32_t i = 0; r->rc == 0 && i < m->nranks; i++)
        read_file(r, json_array_get(files, i), i, &m->files[i]);
}

static void read_scalars(struct reader *r, const json_t *root, struct hl_ckpt_manifest *m)
{
    json_t *scale = get(r, root, "loss_scale", JSON_OBJECT);
    json_t *user = get(r, root, "user", JSON_OBJECT);
    json_t *factor = json_object_get(scale, "scale");

    m->id = get_hex(r, root, "id");
    m->serial = get_count(r, root, "serial", INT64_MAX);
    m->step = get_count(r, root, "step", INT64_MAX);
    m->loss_scale = json_number_value(factor);
    if (!json_is_number(factor) || !(m->loss_scale >= 0 && m->loss_scale <= 0x1p24))
        refuse(r, "scale", "not a number from 0 to 2^24");
    m->nsteps_finite = (uint32_t)get_count(r, scale, "finite_steps", INT32_MAX);
    m->user_bytes = get_count(r, user, "bytes", INT64_MAX);
    m->user_sum = get_hex(r, user, "xxh3");
}

static int check_version(const char *what, const json_t *root, uint32_t *out)
{
    struct reader r = {what, 0};
    const char *format = get_name(&r, root, "format");
    uint64_t version = get_count(&r, root, "version", INT64_MAX);

    if (r.rc < 0)
        return r.rc;
    if (strcmp(format, FORMAT) != 0)
        return hl_fail(HAUL_E_FORMAT, "%s: not the manifest of a checkpoint", what);
    if (version < 1 || version > HL_CKPT_VERSION_KEPT)
        return hl_fail(HAUL_E_CONFIG, "%s: version %" PRIu64 "; this library reads 1 to %d", what,
                       version, HL_CKPT_VERSION_KEPT);
    *out = (uint32_t)version;
    return 0;
}

static int decode(const char *what, const json_t *root, struct hl_ckpt_manifest *m)
{
    struct reader r = {what, check_version(what, root, &m->version)};
    json_t *units;

    if (r.rc < 0)
        return r.rc;
    read_scalars(&r, root, m);
    units = get(&r, root, "units", JSON_ARRAY);
    read_files(&r, root, m);
    for (size_t i = 0; r.rc == 0 && i < json_array_size(units); i++)
        read_unit(&r, json_array_get(units, i), &m->model);
    return r.rc;
}

/* The sum over everything before the tail. */
static int check_sum(const char *what, const char *text, size_t bytes)
{
    struct reader r = {what, 0};
    char digits[17];
    const char *tail = text + bytes - TAIL_BYTES;

    if (bytes < TAIL_BYTES || memcmp(tail, TAIL_BEFORE, sizeof TAIL_BEFORE - 1) != 0 ||
        memcmp(text + bytes - (sizeof TAIL_AFTER - 1), TAIL_AFTER, sizeof TAIL_AFTER - 1) != 0)
        return hl_fail(HAUL_E_FORMAT,
                       "%s: does not end with its checksum; it is cut short, or was "
                       "edited",
                       what);
    snprintf(digits, sizeof digits, "%.16s", tail + sizeof TAIL_BEFORE - 1);
    uint64_t expected = read_hex(&r, "xxh3", digits);
    uint64_t found = hl_checksum(text, bytes - TAIL_BYTES);
    if (r.rc < 0)
        return r.rc;
    if (expected != found)
        return hl_fail(HAUL_E_CHECKSUM,
                       "%s: checksum is %016" PRIx64 ", but its text has %016" PRIx64, what,
                       expected, found);
    return 0;
}

int hl_ckpt_manifest_parse(const char *what, const char *text, size_t bytes,
                           struct hl_ckpt_manifest *out)
{
    struct hl_ckpt_manifest m = {0};
    json_t *root;
    int rc = hl_json_parse(what, HAUL_E_FORMAT, text, bytes, DEPTH, &root);

    if (rc < 0)
        return rc;
    rc = decode(what, root, &m);
    json_decref(root);
    if (rc < 0)
        hl_ckpt_manifest_free(&m);
    else
        *out = m;
    return rc;
}

static int slurp(int fd, const char *what, void **text, size_t *bytes)
{
    struct stat st;
    int rc = hl_sys_fstat(fd, &st);

    if (rc < 0)
        return rc;
    if (!S_ISREG(st.st_mode) || (uint64_t)st.st_size > MOST_BYTES)
        return hl_fail(HAUL_E_FORMAT, "%s: not a regular file of at most 256 MiB", what);
    *bytes = (size_t)st.st_size;
    rc = hl_sys_alloc(*bytes, text);
    if (rc == 0 && (rc = hl_sys_pread_all(fd, *text, *bytes, 0)) < 0)
        hl_sys_free(*text);
    return rc;
}

int hl_ckpt_manifest_read(int dirfd, const char *dir, struct hl_ckpt_manifest *out)
{
    char what[1024];
    size_t bytes = 0;
    void *text;
    int fd = hl_sys_open(dirfd, HL_CKPT_MANIFEST, O_RDONLY, 0), rc;

    if (fd == -ENOENT)
        return hl_fail(-ENOENT, "%s: not complete: it has no " HL_CKPT_MANIFEST, dir);
    if (fd < 0)
        return fd;
    snprintf(what, sizeof what, "%s/" HL_CKPT_MANIFEST, dir);
    rc = slurp(fd, what, &text, &bytes);
    hl_sys_close(fd);
    if (rc < 0)
        return rc;
    rc = check_sum(what, text, bytes);
    if (rc == 0)
        rc = hl_ckpt_manifest_parse(what, text, bytes, out);
    hl_sys_free(text);
    return rc;
}

void hl_ckpt_manifest_free(struct hl_ckpt_manifest *m)
{
    hl_ckpt_model_free(&m->model);
    hl_sys_free(m->files);
    *m = (struct hl_ckpt_manifest){0};
}
