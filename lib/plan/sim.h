/*
 * sim.h: a training step before it is run: the engine's order and placement against a table of rates.
 *
 * One rank is simulated. All ranks do the same at the same time, so a node's memory and drives give each
 * of its ranks an equal share, and a collective takes what its bytes take. Time is a number, not a clock:
 * equal input gives equal output, to the last bit.
 *
 * Parameters are 16-bit. Order, frames and placement are those of schedule.h and placement.h, which the
 * engine asks too (R8); what the trainer's calls, the pump and the optimizer's thread do is written down
 * once more here, without threads.
 */
#ifndef HL_SIM_H
#define HL_SIM_H

#include "haul/engine.h"

/* What a machine can do; each above 0 but for the latencies. */
struct hl_sim_rates {
    double flops_per_s;                      /* of a rank's device, useful */
    double device_mem_bytes_per_s;           /* of a rank's device */
    double h2d_bytes_per_s, d2h_bytes_per_s; /* of a rank's link */
    double mem_bytes_per_s; /* host memory of a node, for all that uses it at once */
    double
        optim_bytes_per_s; /* the optimizer of a node, alone: bytes that an update reads and writes */
    double drive_read_bytes_per_s, drive_write_bytes_per_s; /* of a node, one direction alone */
    double drive_mixed_bytes_per_s;                         /* both together */
    double comm_bytes_per_s; /* between ranks of a node: what a rank sends in a collective */
    double net_bytes_per_s;  /* between nodes: what a node sends */
    /* Until an idle lane begins (link: compute and the optimizer's thread too), and of every collective. */
    double link_latency_s, drive_latency_s, comm_latency_s;
    /* What a byte over the link, or of the drives, takes of host memory's: 1 where a device reaches it by
     * itself; more where processors copy or check it. */
    double mem_per_link_byte, mem_per_drive_byte;
    /* Of a node, alone, on gradients that land: read once, or added to sums; 0: as optim_bytes_per_s. */
    double norm_bytes_per_s, accumulate_bytes_per_s;
    /* The optimizer likewise, on records that have just come from the drives, in a cache maybe. */
    double optim_paged_bytes_per_s;
    double optim_weight; /* of the optimizer to another lane when both want all of it; 0: 1 */
};

struct hl_sim_visit {
    uint32_t unit;
    double forward_flops; /* of one token */
    double stash_bytes;   /* of one token: the input that recomputation starts from */
};

#define HL_SIM_MAX_UNITS 4096

struct hl_sim_model {
    const uint64_t *elems; /* (nunits,) parameters of a unit */
    uint32_t nunits;
    const struct hl_sim_visit *visits; /* (nvisits,) in forward order */
    uint32_t nvisits;
};

struct hl_sim_event {
    enum haul_lane lane;
    int32_t unit;
    double begin_s, end_s; /* from the start of the step that is reported */
    uint64_t bytes;
};

struct hl_sim_opts {
    struct hl_sim_model model;
    struct hl_sim_rates rates;
    uint32_t ranks, ranks_per_node;
    uint32_t stage;
    enum haul_offload offload;
    enum haul_master master;
    uint32_t grad_bytes; /* of an element that travels: 2 or 4 */
    int pull;            /* ranks pull each other's shards over the link instead of gathering */
    /* Budgets; HAUL_UNLIMITED: all there is need of. */
    uint64_t device_mem_bytes, host_mem_bytes, nvme_mem_bytes; /* rank, node, node */
    uint64_t trainer_device_bytes;                             /* activations, for the verdict */
    double tokens;                                             /* of a step, all ranks */
    uint32_t accum;                                            /* micro-batches of a step */
    int batch_order; /* 1: each goes through the whole model; 0: all go through a unit in one visit */
    int recompute;
    int stash;                 /* the inputs of visits leave the device until backward */
    uint64_t stash_host_bytes; /* of a rank's pool; HAUL_UNLIMITED: all. The oldest go on to nvme */
    double forward_s,
        backward_s; /* of a rank and step, instead of what tokens and flops say; 0: not */
    int overlap;
    uint32_t window, slots;
    uint64_t slot_bytes;
    int place_exactly; /* 1: records_host_bytes of a rank's records stay, whatever the budgets say */
    uint64_t records_host_bytes;
    struct hl_sim_event *events; /* (max_events,) of the reported step; NULL: none */
    uint32_t max_events;
};

/* The engine's defaults and no budgets; the caller fills model, rates, tokens. */
void hl_sim_opts_init(struct hl_sim_opts *opts);

struct hl_sim_lane {
    double busy_s, exposed_s;
    double bytes;
};

struct hl_sim_result {
    double step_s;
    double forward_s, backward_s; /* compute alone */
    struct hl_sim_lane lane[HAUL_NLANES];
    uint64_t tier_bytes[HAUL_NTIERS];   /* reserved: device per rank, host and nvme per node */
    double records_paged, params_paged; /* share of a rank's */
    double read_bytes, written_bytes;   /* drives of a node, in a step */
    double written_bytes_per_day;
    uint32_t most_slots;        /* record slots in use at once */
    uint32_t most_stashed;      /* entries */
    uint64_t most_flight_bytes; /* on their way from and to the drives, of a rank */
    uint32_t nevents;
    uint32_t steps; /* simulated until two took the same time */
};

/**
 * Simulate until a step takes as long as the one before it, and report that one.
 *
 * @param opts  [in]
 * @param out   [out] written only on success
 *
 * Threads    any; no clock, no file
 * Errors     0, -EINVAL (text names the option), -EOVERFLOW, -ENOMEM, HAUL_E_PLAN (text: which tier is
 *            short by how much), HAUL_E_STATE (a step that never ends: a defect)
 */
int hl_sim_run(const struct hl_sim_opts *opts, struct hl_sim_result *out);

/* ---- models ---- */

struct hl_sim_shape {
    uint64_t layers, hidden, vocab, seq;
    uint64_t block_elems; /* of one block; 0: 12 h^2 + 13 h */
    int tied;             /* the head is the embedding, visited twice */
};

/* A decoder: embedding, blocks, head. Arrays of HL_SIM_MAX_UNITS + 1 each, the caller's. Forward of a token:
 * 2 operations a parameter of block and head, and attention over seq positions, 4 s h a block (Narayanan et
 * al. 2021 count alike). -EINVAL: a number that is 0, or too many layers. */
int hl_sim_model_decoder(const struct hl_sim_shape *shape, uint64_t *elems,
                         struct hl_sim_visit *visits, struct hl_sim_model *out);

/* Activations on the device with a fused attention: while a block computes, 34 h bytes of each of its
 * micro_tokens (Korthikanti et al. 2022, without the scores), and FP32 scores over the vocabulary at the end;
 * and until backward the inputs (recompute) or everything of all blocks, for kept_tokens. */
uint64_t hl_sim_activation_bytes(const struct hl_sim_shape *shape, double micro_tokens,
                                 double kept_tokens, int recompute);

/* n equal units. */
int hl_sim_model_equal(uint64_t params, uint32_t n, uint64_t *elems, struct hl_sim_visit *visits,
                       struct hl_sim_model *out);

#endif
