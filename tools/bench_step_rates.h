/* bench_step_rates.h: how fast the optimizer and the drive are, each alone, beside the steps that they
 * bound. */
#ifndef HL_BENCH_STEP_RATES_H
#define HL_BENCH_STEP_RATES_H

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

struct hl_step_rates {
    double optim_s_per_elem, optim_bytes_per_s, optim_spread;
    double mixed_bytes_per_s, mixed_spread; /* 0: nothing is paged */
};

struct hl_rate_meter {
    struct hl_step_model *model; /* host placement, overlap off */
    uint64_t params;             /* of that model */
    struct hl_bench_io *roof;    /* NULL: nothing is paged */
    uint64_t roof_bytes, block_bytes;
    struct hl_samples optim_s, optim_bytes_per_s, mixed_bytes_per_s;
};

/* opts->params set. The drive's rate is that of as many bytes as the model's records, moved in the
 * pattern and the blocks in which the engine moves them. Close after a failed open too. */
int hl_rate_meter_open(const struct hl_step_model_opts *opts, int paging,
                       struct hl_rate_meter *out);
void hl_rate_meter_close(struct hl_rate_meter *m);
/* One sample of each. */
int hl_rate_meter_take(struct hl_rate_meter *m);
/* Medians since the last reset. */
void hl_rate_meter_read(struct hl_rate_meter *m, struct hl_step_rates *out);
void hl_rate_meter_reset(struct hl_rate_meter *m);

#endif
