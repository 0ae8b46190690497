/* safetensors_set.c: opening a file, a set or a directory, and the list of what is in it. */
#include "safetensors_set.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "fail.h"
#include "json_text.h"
#include "sys.h"
#include "sys_file.h"

#define INDEX_MOST_BYTES HL_ST_HEADER_MOST
#define INDEX_DEPTH      3
#define MOST_FILES       10000

static int ends_with(const char *text, const char *end)
{
    size_t n = strlen(text), m = strlen(end);

    return n >= m && strcmp(text + n - m, end) == 0;
}

/* ---- one file ---- */

static uint64_t little_endian(const unsigned char *p)
{
    uint64_t n = 0;

    for (int i = 7; i >= 0; i--)
        n = n << 8 | p[i];
    return n;
}

/* Length of the header of an open file, and of the data behind it. */
static int read_lengths(struct hl_st_file *f, uint64_t *header_bytes, uint64_t *data_bytes)
{
    unsigned char length[HL_ST_LENGTH_BYTES];
    struct stat st;
    int rc = hl_sys_fstat(f->fd, &st);

    if (rc < 0)
        return rc;
    if (!S_ISREG(st.st_mode))
        return hl_fail(HAUL_E_FORMAT, "%s: not a regular file", f->path);
    if (st.st_size < HL_ST_LENGTH_BYTES)
        return hl_fail(HAUL_E_FORMAT, "%s: %lld bytes are too few for a safetensors file", f->path,
                       (long long)st.st_size);
    rc = hl_sys_pread_all(f->fd, length, sizeof length, 0);
    if (rc < 0)
        return rc;
    *header_bytes = little_endian(length);
    *data_bytes = (uint64_t)st.st_size - HL_ST_LENGTH_BYTES;
    if (*header_bytes > HL_ST_HEADER_MOST)
        return hl_fail(HAUL_E_FORMAT,
                       "%s: a header of %" PRIu64 " bytes; at most %llu are allowed, so this is no "
                       "safetensors file",
                       f->path, *header_bytes, HL_ST_HEADER_MOST);
    if (*header_bytes > *data_bytes)
        return hl_fail(HAUL_E_FORMAT,
                       "%s: a header of %" PRIu64 " bytes in a file of %lld: it is cut short",
                       f->path, *header_bytes, (long long)st.st_size);
    *data_bytes -= *header_bytes;
    return 0;
}

static int read_header(struct hl_st_file *f)
{
    uint64_t header_bytes = 0, data_bytes = 0;
    int rc = read_lengths(f, &header_bytes, &data_bytes);
    void *text;

    if (rc < 0)
        return rc;
    rc = hl_sys_alloc(header_bytes, &text);
    if (rc < 0)
        return rc;
    rc = hl_sys_pread_all(f->fd, text, header_bytes, HL_ST_LENGTH_BYTES);
    if (rc == 0)
        rc = hl_st_header_parse(f->path, text, header_bytes, data_bytes, &f->header);
    f->data_at = HL_ST_LENGTH_BYTES + header_bytes;
    hl_sys_free(text);
    return rc;
}

static int grow_files(struct haul_safetensors *st)
{
    uint32_t cap = st->files_cap ? st->files_cap * 2 : 4;
    struct hl_st_file *more;
    int rc;

    if (st->nfiles < st->files_cap)
        return 0;
    if (st->nfiles >= MOST_FILES)
        return hl_fail(HAUL_E_FORMAT, "a set of more than %d safetensors files", MOST_FILES);
    rc = hl_sys_alloc_array(cap, sizeof *more, (void **)&more);
    if (rc < 0)
        return rc;
    if (st->nfiles)
        memcpy(more, st->files, st->nfiles * sizeof *more);
    hl_sys_free(st->files);
    st->files = more;
    st->files_cap = cap;
    return 0;
}

static int join(const char *dir, const char *name, char **out)
{
    char path[4096 + 256];

    if (snprintf(path, sizeof path, "%s%s%s", dir, *dir ? "/" : "", name) >= (int)sizeof path)
        return hl_fail(-ENAMETOOLONG, "%.200s...: the path is too long", path);
    return hl_sys_strdup(path, out);
}

/* Open dir/name; whatever happens, close frees what the slot holds. dir "": the current one. */
static int add_file(struct haul_safetensors *st, const char *dir, const char *name)
{
    struct hl_st_file *f;
    int rc = grow_files(st);

    if (rc < 0)
        return rc;
    f = &st->files[st->nfiles++];
    *f = (struct hl_st_file){.fd = -1};
    rc = hl_sys_strdup(name, &f->name);
    if (rc == 0)
        rc = join(dir, name, &f->path);
    if (rc < 0)
        return rc;
    rc = hl_sys_open(AT_FDCWD, f->path, O_RDONLY | O_NONBLOCK, 0);
    if (rc < 0)
        return rc;
    f->fd = rc;
    return read_header(f);
}

/* ---- an index ---- */

static struct hl_st_file *file_named(struct haul_safetensors *st, const char *name)
{
    for (uint32_t i = 0; i < st->nfiles; i++)
        if (strcmp(st->files[i].name, name) == 0)
            return &st->files[i];
    return NULL;
}

static int check_entry(const char *path, const char *tensor, const json_t *file)
{
    char shown[HL_SHOWN_BYTES], name[HL_SHOWN_BYTES];
    const char *text = json_string_value(file);

    hl_json_shown(tensor, shown, sizeof shown);
    if (!text)
        return hl_fail(HAUL_E_FORMAT, "%s: weight_map: the file of '%s' is no text", path, shown);
    if (!*text || strchr(text, '/') || text[0] == '.')
        return hl_fail(HAUL_E_FORMAT,
                       "%s: weight_map: '%s' is in '%s', which is no plain name of a file beside "
                       "the index",
                       path, shown, hl_json_shown(text, name, sizeof name));
    return 0;
}

static int open_files_of(struct haul_safetensors *st, const char *path, const char *dir,
                         json_t *weight_map)
{
    const char *tensor;
    json_t *file;
    int rc = 0;

    json_object_foreach (weight_map, tensor, file) {
        rc = check_entry(path, tensor, file);
        if (rc == 0 && !file_named(st, json_string_value(file)))
            rc = add_file(st, dir, json_string_value(file));
        if (rc < 0)
            return rc;
    }
    return 0;
}

/* Keep of each file what the index says is in it. */
static int keep_named(struct haul_safetensors *st, const char *path, json_t *weight_map)
{
    char shown[HL_SHOWN_BYTES];
    uint64_t found = 0, left_out = 0;

    for (uint32_t i = 0; i < st->nfiles; i++) {
        struct hl_st_header *h = &st->files[i].header;
        uint64_t kept = 0;

        for (uint64_t t = 0; t < h->ntensors; t++) {
            const char *file = json_string_value(json_object_get(weight_map, h->tensors[t].name));

            if (file && strcmp(file, st->files[i].name) == 0) {
                json_object_del(weight_map, h->tensors[t].name);
                h->tensors[kept++] = h->tensors[t];
            }
        }
        found += kept;
        left_out += h->ntensors - kept;
        h->ntensors = kept;
    }
    if (json_object_size(weight_map)) {
        const char *tensor = json_object_iter_key(json_object_iter(weight_map));
        const char *file = json_string_value(json_object_get(weight_map, tensor));

        return hl_fail(HAUL_E_FORMAT, "%s: tensor '%s' is not in %s, where the index has it", path,
                       hl_json_shown(tensor, shown, sizeof shown), file);
    }
    if (left_out)
        hl_log(HAUL_LOG_WARN,
               "%s names %" PRIu64 " tensors; %" PRIu64 " more in its files are left out", path,
               found, left_out);
    return 0;
}

static int open_index(struct haul_safetensors *st, const char *path, const char *dir, int fd)
{
    json_t *root, *weight_map;
    int rc = hl_json_load(path, HAUL_E_FORMAT, fd, INDEX_MOST_BYTES, INDEX_DEPTH, &root);

    if (rc < 0)
        return rc;
    weight_map = json_object_get(root, "weight_map");
    if (!json_is_object(weight_map))
        rc = hl_fail(HAUL_E_FORMAT, "%s is no index of safetensors files: no \"weight_map\"", path);
    if (rc == 0)
        rc = open_files_of(st, path, dir, weight_map);
    if (rc == 0)
        rc = keep_named(st, path, weight_map);
    json_decref(root);
    return rc;
}

/* ---- a directory ---- */

struct names {
    char **name;
    uint32_t n, cap;
};

static int take_name(void *user, const char *name)
{
    struct names *names = user;
    char **more;
    int rc;

    if (name[0] == '.' || (!ends_with(name, HL_ST_SUFFIX) && !ends_with(name, HL_ST_INDEX_SUFFIX)))
        return 0;
    if (names->n == MOST_FILES)
        return hl_fail(HAUL_E_FORMAT, "more than %d safetensors files", MOST_FILES);
    if (names->n == names->cap) {
        names->cap = names->cap ? names->cap * 2 : 8;
        rc = hl_sys_alloc_array(names->cap, sizeof *more, (void **)&more);
        if (rc < 0)
            return rc;
        if (names->n)
            memcpy(more, names->name, names->n * sizeof *more);
        hl_sys_free(names->name);
        names->name = more;
    }
    rc = hl_sys_strdup(name, &names->name[names->n]);
    names->n += rc == 0;
    return rc;
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* STEM-00001-of-00003.safetensors */
static int is_part(const char *name)
{
    unsigned i, n;
    int end = 0;
    const char *at = strstr(name, "-of-");

    while (at && strstr(at + 1, "-of-"))
        at = strstr(at + 1, "-of-");
    return at && at - name >= 6 &&
           sscanf(at - 6, "-%5u-of-%5u" HL_ST_SUFFIX "%n", &i, &n, &end) == 2 && end > 0;
}

static int open_index_in(struct haul_safetensors *st, const char *dir, const char *name)
{
    char *path;
    int rc = join(dir, name, &path), fd;

    if (rc < 0)
        return rc;
    rc = fd = hl_sys_open(AT_FDCWD, path, O_RDONLY | O_NONBLOCK, 0);
    if (fd >= 0)
        rc = open_index(st, path, dir, fd);
    hl_sys_close(fd);
    hl_sys_free(path);
    return rc;
}

static int open_all(struct haul_safetensors *st, const char *dir, const struct names *names)
{
    int rc = 0;

    if (names->n == 0)
        return hl_fail(-ENOENT, "%s has no safetensors file", dir);
    for (uint32_t i = 0; i < names->n; i++)
        if (is_part(names->name[i]))
            return hl_fail(HAUL_E_FORMAT,
                           "%s/%s is part of a set, but its index is missing: the save was cut "
                           "short, or the copy is not complete",
                           dir, names->name[i]);
    for (uint32_t i = 0; rc == 0 && i < names->n; i++)
        rc = add_file(st, dir, names->name[i]);
    return rc;
}

static int choose_in(struct haul_safetensors *st, const char *dir, const struct names *names)
{
    const char *index = NULL;

    for (uint32_t i = 0; i < names->n; i++) {
        if (strcmp(names->name[i], "model" HL_ST_SUFFIX) == 0)
            return add_file(st, dir, names->name[i]);
        if (!ends_with(names->name[i], HL_ST_INDEX_SUFFIX))
            continue;
        if (index)
            return hl_fail(HAUL_E_FORMAT, "%s has two indices, %s and %s: name one of them", dir,
                           index, names->name[i]);
        index = names->name[i];
    }
    return index ? open_index_in(st, dir, index) : open_all(st, dir, names);
}

static int open_dir(struct haul_safetensors *st, const char *path, int fd)
{
    struct names names = {0};
    int rc = hl_sys_names(fd, take_name, &names);

    if (rc == 0 && names.n)
        qsort(names.name, names.n, sizeof *names.name, by_text);
    if (rc == 0)
        rc = choose_in(st, path, &names);
    for (uint32_t i = 0; i < names.n; i++)
        hl_sys_free(names.name[i]);
    hl_sys_free(names.name);
    return rc;
}

/* ---- all of them ---- */

static int split_path(const char *path, char dir[4096], const char **name)
{
    const char *slash = strrchr(path, '/');

    *name = slash ? slash + 1 : path;
    if (*name - path >= 4096)
        return hl_fail(-ENAMETOOLONG, "%.200s...: the path is too long", path);
    snprintf(dir, 4096, "%.*s", slash ? (int)(slash > path ? slash - path : 1) : 0, path);
    return 0;
}

static int open_path(struct haul_safetensors *st, const char *path)
{
    char dir[4096];
    const char *name;
    struct stat stat;
    int rc = split_path(path, dir, &name), fd;

    if (rc < 0)
        return rc;
    fd = hl_sys_open(AT_FDCWD, path, O_RDONLY | O_NONBLOCK, 0);
    if (fd < 0)
        return fd;
    rc = hl_sys_fstat(fd, &stat);
    if (rc == 0) {
        if (S_ISDIR(stat.st_mode))
            rc = open_dir(st, path, fd);
        else if (ends_with(path, ".json"))
            rc = open_index(st, path, dir, fd);
        else
            rc = add_file(st, dir, name);
    }
    hl_sys_close(fd);
    return rc;
}

static int by_name(const void *a, const void *b)
{
    const struct hl_st_tensor *x = *(const struct hl_st_tensor *const *)a,
                              *y = *(const struct hl_st_tensor *const *)b;

    return strcmp(x->name, y->name);
}

static int list_tensors(struct haul_safetensors *st)
{
    char shown[HL_SHOWN_BYTES];
    uint64_t n = 0;
    int rc;

    for (uint32_t i = 0; i < st->nfiles; i++)
        n += st->files[i].header.ntensors;
    rc = hl_sys_alloc_array(n, sizeof *st->tensors, (void **)&st->tensors);
    if (rc == 0)
        rc = hl_sys_alloc_array(n, sizeof *st->by_name, (void **)&st->by_name);
    if (rc < 0)
        return rc;
    for (uint32_t i = 0; i < st->nfiles; i++)
        for (uint64_t t = 0; t < st->files[i].header.ntensors; t++) {
            struct hl_st_tensor *tensor = &st->tensors[st->ntensors];

            *tensor = st->files[i].header.tensors[t];
            tensor->file = i;
            st->by_name[st->ntensors++] = tensor;
        }
    if (n)
        qsort(st->by_name, n, sizeof *st->by_name, by_name);
    for (uint64_t i = 1; i < n; i++)
        if (by_name(&st->by_name[i - 1], &st->by_name[i]) == 0)
            return hl_fail(HAUL_E_FORMAT, "tensor '%s' is in both %s and %s",
                           hl_json_shown(st->by_name[i]->name, shown, sizeof shown),
                           st->files[st->by_name[i - 1]->file].path,
                           st->files[st->by_name[i]->file].path);
    return 0;
}

int haul_safetensors_open(const char *path, struct haul_safetensors **out)
{
    struct haul_safetensors *st;
    int rc;

    if ((rc = hl_need("haul_safetensors_open", "path", path)) < 0 ||
        (rc = hl_need("haul_safetensors_open", "out", out)) < 0 ||
        (rc = hl_sys_alloc(sizeof *st, (void **)&st)) < 0)
        return rc;
    rc = open_path(st, path);
    if (rc == 0)
        rc = list_tensors(st);
    if (rc < 0) {
        haul_safetensors_close(st);
        return rc;
    }
    *out = st;
    return 0;
}

void haul_safetensors_close(struct haul_safetensors *st)
{
    if (!st)
        return;
    for (uint32_t i = 0; i < st->nfiles; i++) {
        hl_st_header_free(&st->files[i].header);
        hl_sys_close(st->files[i].fd);
        hl_sys_free(st->files[i].path);
        hl_sys_free(st->files[i].name);
    }
    hl_sys_free(st->files);
    hl_sys_free(st->tensors);
    hl_sys_free(st->by_name);
    hl_sys_free(st);
}
