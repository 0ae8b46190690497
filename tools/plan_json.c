/* plan_json.c: haul plan --json. Key names are a contract: append only. */
#include <errno.h>
#include <jansson.h>
#include <stdio.h>

#include "plan_report.h"
#include "sim_report.h"

/* The whole tree is made first and printed once, so that a failure prints nothing. */

static json_t *whole(double elems)
{
    return json_integer((json_int_t)elems);
}

static json_t *working_set(const struct haul_working_set *w)
{
    return json_pack(
        "{s:I, s:I, s:I, s:I, s:I, s:I}", "window_device_bytes", (json_int_t)w->window_device_bytes,
        "gradient_window_device_bytes", (json_int_t)w->gradient_window_device_bytes,
        "activations_device_bytes", (json_int_t)w->activations_device_bytes,
        "activations_full_device_bytes", (json_int_t)w->activations_full_device_bytes,
        "activations_recompute_device_bytes", (json_int_t)w->activations_recompute_device_bytes,
        "slots_host_bytes", (json_int_t)w->slots_host_bytes);
}

static json_t *row_json(const struct haul_plan_row *r, int with_working_set)
{
    json_t *row =
        json_pack("{s:I, s:s, s:I, s:I, s:I, s:o, s:f, s:b, s:I, s:{s:I, s:I, s:I}}", "stage",
                  (json_int_t)r->stage, "offload", hl_plan_offload_name(r->offload),
                  "device_bytes_per_rank", (json_int_t)r->device_bytes_per_rank,
                  "host_bytes_per_node", (json_int_t)r->host_bytes_per_node, "nvme_bytes_per_node",
                  (json_int_t)r->nvme_bytes_per_node, "comm_elems_per_rank",
                  whole(r->comm_elems_per_rank), "comm_ratio", r->comm_ratio, "fits", r->fits,
                  "short_by_bytes", (json_int_t)r->short_by_bytes, "short_by", "device",
                  (json_int_t)r->short_by_tier_bytes[HAUL_TIER_DEVICE], "host",
                  (json_int_t)r->short_by_tier_bytes[HAUL_TIER_HOST], "nvme",
                  (json_int_t)r->short_by_tier_bytes[HAUL_TIER_NVME]);

    if (row != NULL && with_working_set &&
        json_object_set_new(row, "working_set", working_set(&r->working_set)) < 0) {
        json_decref(row);
        return NULL;
    }
    return row;
}

static json_t *rows_json(const struct hl_plan_report *r)
{
    json_t *rows = json_array();

    for (int i = 0; i < HAUL_PLAN_ROWS; i++)
        if (json_array_append_new(rows, row_json(&r->rows[i], r->opts.shape.layers > 0)) < 0) {
            json_decref(rows);
            return NULL;
        }
    return rows;
}

static json_t *bounds_json(const struct hl_plan_report *r, const struct hl_bounds *b)
{
    return json_pack("{s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:s, s:f, s:f}", "tokens",
                     r->tokens, "step_s", b->step_s, "forward_s", b->forward_s, "backward_s",
                     b->backward_s, "h2d_s", b->h2d_s, "d2h_s", b->d2h_s, "optim_s", b->optim_s,
                     "host_memory_s", b->mem_s, "nvme_s", b->nvme_s, "bound_by",
                     hl_bound_name(b->by), "nvme_read_bytes_per_node", b->nvme_read_bytes,
                     "nvme_written_bytes_per_node", b->nvme_written_bytes);
}

static json_t *sim_json(const struct hl_plan_sim *s)
{
    const enum haul_lane by = hl_sim_bottleneck(&s->result);
    json_t *o;

    if (s->best < 0)
        return json_pack("{s:s}", "why_not", s->why_not);
    o = json_pack("{s:f, s:f, s:s, s:f, s:f, s:I, s:I, s:I}", "step_s", s->result.step_s,
                  "fastest_s", s->fastest_s, "bottleneck", hl_sim_lane_name(by),
                  "bottleneck_exposed_s", s->result.lane[by].exposed_s, "written_bytes_per_day",
                  s->result.written_bytes_per_day, "device_bytes_per_rank",
                  (json_int_t)s->result.tier_bytes[HAUL_TIER_DEVICE], "host_bytes_per_node",
                  (json_int_t)s->result.tier_bytes[HAUL_TIER_HOST], "nvme_bytes_per_node",
                  (json_int_t)s->result.tier_bytes[HAUL_TIER_NVME]);
    if (o && s->upgrade.what)
        json_object_set_new(
            o, "upgrade",
            json_pack("{s:s, s:f}", "what", s->upgrade.what, "step_s", s->upgrade.step_s));
    return o;
}

static json_t *recommended_json(const struct hl_plan_report *r)
{
    char why[256];

    if (r->best < 0)
        return json_null();
    return json_pack("{s:i, s:s, s:s, s:o, s:o}", "stage", (int)r->rows[r->best].stage, "offload",
                     hl_plan_offload_name(r->rows[r->best].offload), "why",
                     hl_plan_why(r, why, sizeof why), "lower_bounds", bounds_json(r, &r->bounds),
                     "simulated", sim_json(&r->sim));
}

/* What keeps most on the device, whatever it takes: the page's choice. */
static json_t *least_offload_json(const struct hl_plan_report *r)
{
    if (r->least_offload < 0)
        return json_null();
    return json_pack("{s:i, s:s, s:o}", "stage", (int)r->rows[r->least_offload].stage, "offload",
                     hl_plan_offload_name(r->rows[r->least_offload].offload), "lower_bounds",
                     bounds_json(r, &r->least_offload_bounds));
}

static json_t *rates_json(const struct hl_rates *r)
{
    return json_pack("{s:f, s:f, s:f, s:f, s:f}", "flops_per_s", r->flops_per_s, "link_bytes_per_s",
                     r->link_bytes_per_s, "mem_bytes_per_s", r->mem_bytes_per_s,
                     "drive_read_bytes_per_s", r->drive_read_bytes_per_s, "drive_write_bytes_per_s",
                     r->drive_write_bytes_per_s);
}

int hl_plan_print_json(const struct hl_plan_report *r)
{
    json_t *root =
        json_pack("{s:I, s:I, s:I, s:s, s:s, s:s, s:i, s:o, s:o, s:o, s:o}", "params",
                  (json_int_t)r->opts.params, "ranks", (json_int_t)r->opts.ranks, "ranks_per_node",
                  (json_int_t)r->opts.ranks_per_node, "dtype", hl_plan_dtype_name(r->opts.dtype),
                  "grad_dtype", hl_plan_dtype_name(r->opts.grad_dtype), "master",
                  r->opts.master == HAUL_MASTER_SPLIT ? "split" : "fp32", "passes",
                  (int)r->opts.passes, "rows", rows_json(r), "recommended", recommended_json(r),
                  "least_offload", least_offload_json(r), "rates", rates_json(&r->rates));

    if (root == NULL || json_dumpf(root, stdout, JSON_INDENT(2)) < 0) {
        json_decref(root);
        return -ENOMEM;
    }
    json_decref(root);
    putchar('\n');
    return 0;
}
