/* manifest.h: one generation of a durable store, as it stands on disk.
 *
 *   manifest.<generation>: header | extents | blocks | blob, padded to 8 | XXH3-64 of all before
 *
 * Little-endian. Written beside the others (temp, fsync, rename, fsync of the directory), so a name
 * that exists is a manifest that is complete. */
#ifndef HL_MANIFEST_H
#define HL_MANIFEST_H

#include "store.h"

struct hl_manifest {
    uint64_t store_id, generation, written_bytes;
    uint32_t block_bytes, ndirs;
    uint32_t ncells[HAUL_MAX_DIRS];
    uint32_t nextents;
    struct hl_extent **extents; /* (nextents,) slots and sums; held and older are NONE */
    void *blob;
    uint64_t blob_bytes;
};

/* Write generation of the store as it is now. A failure leaves no file behind. *lost = 1 when that
 * could not be made sure: the store must not go on then. */
int hl_manifest_write(const struct haul_store *s, uint64_t generation, const void *blob,
                      uint64_t blob_bytes, int *lost);
/* -ENOENT, HAUL_E_CHECKSUM, HAUL_E_CONFIG (another version), -errno. */
int hl_manifest_read(int dirfd, const char *dir, uint64_t generation, struct hl_manifest *out);
void hl_manifest_free(struct hl_manifest *m);
/* Remove it, durably. */
int hl_manifest_remove(int dirfd, uint64_t generation);
/* Generations in a directory, ascending; *list is the caller's (hl_sys_free). clean: remove what
 * writers left unfinished. */
int hl_manifest_list(int dirfd, int clean, uint64_t **list, uint32_t *n);

#endif
