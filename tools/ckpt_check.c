/* ckpt_check.c: haul ckpt verify and diff. Key names of --json are a contract: append only. */
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt_tool.h"
#include "haul/size.h"
#include "time_left.h"

/* ---- verify ---- */

static int check_user(const struct hl_ckpt *ck)
{
    void *bytes = malloc(ck->m.user_bytes + 1);
    int rc = bytes == NULL ? -ENOMEM : hl_ckpt_read_user(ck, bytes);

    free(bytes);
    return rc;
}

struct checking {
    struct hl_ckpt *ck;
    json_t *list; /* of damages */
    uint64_t ndamaged;
    struct hl_time_left left;
};

static void note(struct checking *c, int rc)
{
    if (rc >= 0)
        return;
    c->ndamaged++;
    hl_time_left_end(&c->left);
    fprintf(stderr, "haul ckpt verify: %s\n", haul_last_error());
    json_array_append_new(c->list, json_string(haul_last_error()));
}

static void check_blocks(struct checking *c)
{
    hl_time_left_begin(&c->left, "verify", hl_ckpt_tool_bytes(c->ck), 1);
    for (uint64_t i = 0; i < c->ck->nblocks; i++) {
        hl_time_left_at(&c->left, hl_ckpt_tool_bytes(c->ck) / c->ck->nblocks * i);
        note(c, hl_ckpt_read(c->ck, i));
    }
    hl_time_left_end(&c->left);
}

/* Of a rank whose records are elsewhere: all of them, also what lies between them. */
static void check_records(struct checking *c, uint32_t rank)
{
    const struct hl_ckpt_store_header *head = &c->ck->stores[rank].head;
    struct hl_ckpt_records *records;
    char *buf = malloc(head->block_bytes);
    int rc = buf == NULL ? -ENOMEM : hl_ckpt_records_of(c->ck, rank, &records);

    hl_time_left_begin(&c->left, "verify records", head->nblocks * head->block_bytes, 1);
    note(c, rc);
    for (uint64_t i = 0; rc == 0 && i < head->nblocks; i++) {
        hl_time_left_at(&c->left, i * head->block_bytes);
        note(c, hl_ckpt_records_block(records, i, buf));
    }
    hl_time_left_end(&c->left);
    free(buf);
}

/* Manifest, headers and tables are checked when this is open. Prints every damage, returns how many. */
static uint64_t check_all(struct hl_ckpt *ck, json_t *list)
{
    struct checking c = {.ck = ck, .list = list};

    check_blocks(&c);
    for (uint32_t r = 0; r < ck->m.nranks; r++)
        if (ck->stores[r].head.nblocks != 0)
            check_records(&c, r);
    note(&c, check_user(ck));
    return c.ndamaged;
}

int hl_ckpt_tool_verify(const struct hl_command *cmd, const char *path, int json)
{
    json_t *list = json_array(), *root;
    struct hl_ckpt *ck;
    char size[32];
    int rc = hl_ckpt_tool_open(path, &ck);

    if (rc < 0) {
        json_decref(list);
        return hl_report_error(cmd, rc);
    }
    uint64_t n = check_all(ck, list);
    if (json) {
        root = json_pack("{s:s, s:I, s:I, s:b, s:O}", "path", ck->dir, "bytes",
                         (json_int_t)hl_ckpt_tool_bytes(ck), "blocks", (json_int_t)ck->nblocks,
                         "ok", n == 0, "damaged", list);
        if (root != NULL)
            json_dumpf(root, stdout, JSON_INDENT(2));
        putchar('\n');
        json_decref(root);
    } else {
        printf("%s: step %" PRIu64 ", %s in %" PRIu64 " blocks: ", ck->dir, ck->m.step,
               haul_format_size(hl_ckpt_tool_bytes(ck), size, sizeof size), ck->nblocks);
        if (n == 0)
            puts("every byte is as it was written");
        else
            printf("%" PRIu64 " damaged\n", n);
    }
    json_decref(list);
    hl_ckpt_close(ck);
    return n == 0 ? HL_EXIT_OK : HL_EXIT_FAILED;
}

/* ---- diff ---- */

struct values {
    float *part[3]; /* p, m, v: (HL_CKPT_BLOCK_ELEMS,) */
};

static const char *const part_names[] = {"p", "m", "v"};

struct difference {
    uint64_t ndiffer; /* elements of the tensor */
    uint64_t first;
    unsigned part;
    float a, b;
};

static uint32_t bits(float x)
{
    uint32_t word;

    memcpy(&word, &x, sizeof word);
    return word;
}

static void compare(const struct values v[2], uint64_t first, uint64_t n, unsigned nparts,
                    struct difference *d)
{
    for (uint64_t i = 0; i < n; i++)
        for (unsigned k = 0; k < nparts; k++) {
            if (bits(v[0].part[k][i]) == bits(v[1].part[k][i]))
                continue;
            if (d->ndiffer++ == 0)
                *d = (struct difference){1, first + i, k, v[0].part[k][i], v[1].part[k][i]};
            break;
        }
}

/* How far it is. */
struct so_far {
    struct hl_time_left left;
    uint64_t done_bytes;
};

static int diff_tensor(struct hl_ckpt *const ck[2], uint32_t u, uint32_t t,
                       const struct values v[2], struct difference *d, struct so_far *far)
{
    uint64_t n = ck[0]->m.model.units[u].places[t].elems;
    int trained = !ck[0]->m.model.units[u].tensors[t].frozen, rc = 0;

    *d = (struct difference){.ndiffer = 0};
    for (uint64_t at = 0; rc == 0 && at < n; at += HL_CKPT_BLOCK_ELEMS) {
        uint64_t some = n - at < HL_CKPT_BLOCK_ELEMS ? n - at : HL_CKPT_BLOCK_ELEMS;
        for (unsigned k = 0; rc == 0 && k < 2; k++)
            rc = hl_ckpt_source(ck[k], u, t, at, some, v[k].part[0], trained ? v[k].part[1] : NULL,
                                trained ? v[k].part[2] : NULL);
        if (rc == 0)
            compare(v, at, some, trained ? 3 : 1, d);
        far->done_bytes += 2 * hl_ckpt_tool_value_bytes(trained, some);
        hl_time_left_at(&far->left, far->done_bytes);
    }
    return rc;
}

static void tell_tensor(const struct hl_ckpt_unit *u, uint32_t t, const struct difference *d,
                        json_t *list)
{
    if (list == NULL)
        printf("%s.%s: %" PRIu64 " of %" PRIu64 " elements differ, the first at %" PRIu64
               ": %s %08" PRIx32 " (%g) and %08" PRIx32 " (%g)\n",
               u->name, u->tensors[t].name, d->ndiffer, u->places[t].elems, d->first,
               part_names[d->part], bits(d->a), (double)d->a, bits(d->b), (double)d->b);
    else
        json_array_append_new(
            list, json_pack("{s:s, s:s, s:I, s:I, s:s, s:I, s:I}", "unit", u->name, "tensor",
                            u->tensors[t].name, "elements", (json_int_t)d->ndiffer, "first",
                            (json_int_t)d->first, "part", part_names[d->part], "bits_a",
                            (json_int_t)bits(d->a), "bits_b", (json_int_t)bits(d->b)));
}

static void tell_count(const char *what, uint64_t a, uint64_t b, json_t *list, int *equal)
{
    if (a == b)
        return;
    *equal = 0;
    if (list == NULL)
        printf("%s: %" PRIu64 " and %" PRIu64 "\n", what, a, b);
    else
        json_array_append_new(list, json_pack("{s:s, s:I, s:I}", "counter", what, "a",
                                              (json_int_t)a, "b", (json_int_t)b));
}

static void diff_counters(struct hl_ckpt *const ck[2], json_t *list, int *equal)
{
    const struct hl_ckpt_manifest *a = &ck[0]->m, *b = &ck[1]->m;
    char what[160];

    tell_count("step", a->step, b->step, list, equal);
    tell_count("loss scale", (uint64_t)a->loss_scale, (uint64_t)b->loss_scale, list, equal);
    tell_count("steps without overflow", a->nsteps_finite, b->nsteps_finite, list, equal);
    for (uint32_t u = 0; u < a->model.nunits; u++) {
        snprintf(what, sizeof what, "%s: updates", a->model.units[u].name);
        tell_count(what, a->model.units[u].nsteps, b->model.units[u].nsteps, list, equal);
    }
}

static int diff_all(struct hl_ckpt *const ck[2], const struct values v[2], json_t *list, int *equal)
{
    const struct hl_ckpt_model *model = &ck[0]->m.model;
    struct difference d;
    struct so_far far = {.done_bytes = 0};
    int rc = 0;

    diff_counters(ck, list, equal);
    hl_time_left_begin(&far.left, "diff", 2 * hl_ckpt_tool_all_value_bytes(model), 1);
    for (uint32_t u = 0; rc == 0 && u < model->nunits; u++)
        for (uint32_t t = 0; rc == 0 && t < model->units[u].ntensors; t++) {
            rc = diff_tensor(ck, u, t, v, &d, &far);
            if (rc < 0 || d.ndiffer == 0)
                continue;
            *equal = 0;
            hl_time_left_end(&far.left);
            tell_tensor(&model->units[u], t, &d, list);
        }
    hl_time_left_end(&far.left);
    return rc;
}

static int diff_opened(const struct hl_command *cmd, struct hl_ckpt *const ck[2], int json)
{
    struct values v[2] = {0};
    float *mem = malloc(6 * HL_CKPT_BLOCK_ELEMS * sizeof *mem);
    json_t *list = json ? json_array() : NULL, *root;
    int equal = 1, rc = mem == NULL ? -ENOMEM : 0;

    for (unsigned i = 0; rc == 0 && i < 6; i++)
        v[i / 3].part[i % 3] = mem + i * HL_CKPT_BLOCK_ELEMS;
    if (rc == 0)
        rc = hl_ckpt_model_match(ck[0]->dir, &ck[0]->m.model, &ck[1]->m.model);
    if (rc == 0)
        rc = diff_all(ck, v, list, &equal);
    free(mem);
    if (rc < 0) {
        json_decref(list);
        return hl_report_error(cmd, rc);
    }
    if (json) {
        root = json_pack("{s:b, s:o}", "equal", equal, "differences", list);
        json_dumpf(root, stdout, JSON_INDENT(2));
        putchar('\n');
        json_decref(root);
    } else if (equal)
        puts("equal bits");
    return equal ? HL_EXIT_OK : HL_EXIT_FAILED;
}

int hl_ckpt_tool_diff(const struct hl_command *cmd, const char *a, const char *b, int json)
{
    struct hl_ckpt *ck[2] = {NULL, NULL};
    int rc = hl_ckpt_tool_open(a, &ck[0]);

    if (rc == 0)
        rc = hl_ckpt_tool_open(b, &ck[1]);
    rc = rc < 0 ? hl_report_error(cmd, rc) : diff_opened(cmd, ck, json);
    hl_ckpt_close(ck[0]);
    hl_ckpt_close(ck[1]);
    return rc;
}
