/* bench_step_rates.h: how fast optimizer, copies and drive are, each alone, and what they take from each
 * other, beside the steps that they bound. */
#ifndef HL_BENCH_STEP_RATES_H
#define HL_BENCH_STEP_RATES_H

#include "bench_beside.h"
#include "step_model.h"

#define HL_RATES_MAX 96

struct hl_samples {
    double v[HL_RATES_MAX];
    uint32_t n;
};

void hl_samples_add(struct hl_samples *s, double v);
/* Sorts; 0 without samples. */
double hl_samples_median(struct hl_samples *s);
/* (largest - smallest) / median; sorts. */
double hl_samples_spread(struct hl_samples *s);

/* Bytes per second, and seconds. The drive's are 0 when nothing is paged. */
struct hl_step_rates {
    double optim_s_per_elem, optim_bytes_per_s, optim_spread;
    double mixed_bytes_per_s, mixed_spread; /* both ways, many records under way */
    /* Through as many slots as the engine has: one way, both ways. */
    double read_bytes_per_s, write_bytes_per_s, ring_bytes_per_s;
    double paged_bytes_per_s; /* the optimizer on records that have just come through them */
    double norm_bytes_per_s, accumulate_bytes_per_s; /* on gradients as they land */
    double copy_bytes_per_s;                         /* one thread's copies */
    /* Of the optimizer's bytes, which it loses to them. */
    double mem_per_copied_byte, mem_per_drive_byte;
    double optim_weight; /* of the optimizer to a copy, where both want all there is */
};

/* What is measured, by repeat. */
enum hl_rate {
    HL_METER_OPTIM_S = 0,
    HL_METER_OPTIM,
    HL_METER_READ,
    HL_METER_WRITE,
    HL_METER_MIXED,
    HL_METER_NORM,
    HL_METER_ACCUMULATE,
    HL_METER_RING,
    HL_METER_PAGED,
    HL_METER_COPY,
    HL_METER_COPY_COST,
    HL_METER_DRIVE_COST,
    HL_METER_WEIGHT,
    HL_METER_NRATES
};

struct hl_rate_meter {
    struct hl_step_model *model; /* host placement, overlap off */
    uint64_t params;             /* of that model */
    struct hl_beside *beside;
    struct hl_bench_io *roof; /* NULL: nothing is paged */
    uint64_t roof_bytes, block_bytes;
    uint64_t record_bytes, slot_bytes; /* what passes, and what the engine moves at once */
    uint32_t slots;
    struct hl_samples got[HL_METER_NRATES];
};

/* opts->params set. The drive's rates are those of as many bytes as the model's records, moved in the
 * pattern, the slots and the blocks in which the engine moves them. Close after a failed open too. */
int hl_rate_meter_open(const struct hl_step_model_opts *opts, int paging,
                       struct hl_rate_meter *out);
void hl_rate_meter_close(struct hl_rate_meter *m);
/* One sample of each. */
int hl_rate_meter_take(struct hl_rate_meter *m);
/* Medians since the last reset. */
void hl_rate_meter_read(struct hl_rate_meter *m, struct hl_step_rates *out);
void hl_rate_meter_reset(struct hl_rate_meter *m);

#endif
