/* stripe_file.h: what each directory of a durable store says about itself, and writing space once. */
#ifndef HL_STRIPE_FILE_H
#define HL_STRIPE_FILE_H

#include "store.h"

/* Compare each directory's haul.stripe with the store's, or write it where there is none. Reads
 * written_bytes. fresh: no manifest exists, so that leftovers of a dead maker may be adopted. */
int hl_stripe_check(struct haul_store *s, int fresh);
int hl_stripe_write(const struct haul_store *s, uint32_t dir);

/* Write zeros to [written_bytes, file_bytes) of every data file: unwritten extents make later writes
 * slower, and reserved space that was never written is not proven to be there. */
int hl_write_once(struct haul_store *s);

#endif
