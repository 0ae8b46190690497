/* sim_model.c: units and visits of the models that are simulated. */
#include "fail.h"
#include "sim.h"

static int check_shape(const struct hl_sim_shape *s)
{
    if (s->layers == 0 || s->hidden == 0 || s->vocab == 0)
        return hl_fail(-EINVAL, "model: layers, hidden and vocab must be above 0");
    if (s->layers > HL_SIM_MAX_UNITS - 2)
        return hl_fail(-EINVAL, "model: %llu layers; at most %d", (unsigned long long)s->layers,
                       HL_SIM_MAX_UNITS - 2);
    if (s->hidden > UINT64_C(1) << 24 || s->vocab > UINT64_C(1) << 28 ||
        s->seq > UINT64_C(1) << 28 || s->block_elems > UINT64_C(1) << 48)
        return hl_fail(-EINVAL,
                       "model: hidden at most 2^24, vocab and seq 2^28, a block 2^48 parameters");
    return 0;
}

int hl_sim_model_decoder(const struct hl_sim_shape *s, uint64_t *elems, struct hl_sim_visit *visits,
                         struct hl_sim_model *out)
{
    const uint64_t h = s->hidden, block = s->block_elems ? s->block_elems : 12 * h * h + 13 * h;
    const double wide = (double)h, attention = 4 * (double)s->seq * wide;
    const uint32_t layers = (uint32_t)s->layers;
    int rc = check_shape(s);

    if (rc < 0)
        return rc;
    elems[0] = s->vocab * h;
    visits[0] = (struct hl_sim_visit){.unit = 0};
    for (uint32_t i = 1; i <= layers; i++) {
        elems[i] = block;
        visits[i] = (struct hl_sim_visit){i, 2 * (double)block + attention, 2 * wide};
    }
    elems[layers + 1] = s->vocab * h + h;
    visits[layers + 1] =
        (struct hl_sim_visit){s->tied ? 0 : layers + 1, 2 * (double)(s->vocab * h), 2 * wide};
    *out = (struct hl_sim_model){elems, layers + (s->tied ? 1 : 2), visits, layers + 2};
    return 0;
}

uint64_t hl_sim_activation_bytes(const struct hl_sim_shape *s, double micro_tokens,
                                 double kept_tokens, int recompute)
{
    const double wide = (double)s->hidden, all = (double)s->layers;
    const double works = micro_tokens * (34 * wide + 4 * (double)s->vocab);

    return (uint64_t)(works + kept_tokens * all * wide * (recompute ? 2 : 34));
}

int hl_sim_model_equal(uint64_t params, uint32_t n, uint64_t *elems, struct hl_sim_visit *visits,
                       struct hl_sim_model *out)
{
    if (n < 1 || n > HL_SIM_MAX_UNITS || params < n)
        return hl_fail(-EINVAL, "model: %u units of %llu parameters; 1 to %d, of at least one each",
                       n, (unsigned long long)params, HL_SIM_MAX_UNITS);
    for (uint32_t i = 0; i < n; i++) {
        elems[i] = params / n + (i < params % n);
        visits[i] = (struct hl_sim_visit){i, 2 * (double)elems[i], 0};
    }
    *out = (struct hl_sim_model){elems, n, visits, n};
    return 0;
}
