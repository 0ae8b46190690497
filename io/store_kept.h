/*
 * store_kept.h: what the engine and checkpoints need of a durable store beyond haul/pager.h: where a generation's
 * blocks are, so that others can read them, and a step back.
 */
#ifndef HL_STORE_KEPT_H
#define HL_STORE_KEPT_H

#include "haul/pager.h"

#define HL_STORE_DATA_NAME "haul.data"

/* Where a block's current content is. On disk as it is here, little-endian: checkpoints hold it. */
struct hl_store_place {
    uint64_t at;    /* in the data file of directory `dir` */
    uint64_t sum;   /* XXH3-64 of `bytes` bytes; what follows in the block is zeros */
    uint32_t dir;   /* of the store's, in order */
    uint32_t bytes; /* 0: never written, all zeros */
};

/* An extent that no generation holds: its content goes with the process, and prepare does not stand in its
 * way. Else as haul_extent_create(). */
int hl_extent_create_passing(struct haul_store *store, uint32_t id, uint64_t bytes);

/* Blocks of an extent, in order: out is (blocks of the extent,). No write on it is in flight. */
int hl_store_places(struct haul_store *store, uint32_t extent, struct hl_store_place *out);

/* 1: what is held is exactly the current generation; 0: something was written since, or there is none. */
int hl_store_unchanged(struct haul_store *store);

/* Take back the generation prepared last while the one before it is not retired: that one (0: none) is the
 * current one again. The content stays as it is. */
int hl_store_take_back(struct haul_store *store);

/* Retire the generation before the current one, if there is one. Of who opens the store, none may take it for the
 * current one any more, whatever stands there: so what cannot be removed is told in the log, and stays. */
int hl_store_release_older(struct haul_store *store);
uint64_t hl_store_id(const struct haul_store *store);
/* As given at open; NULL past the last. */
const char *hl_store_dir(const struct haul_store *store, uint32_t i);

/* The notes of a generation in a store that is not open. dir: its first directory. End *blob with hl_sys_free(). */
int hl_store_notes(const char *dir, uint64_t generation, void **blob, uint64_t *bytes);

#endif
