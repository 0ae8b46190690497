/* ckpt_manifest.h: a checkpoint's manifest. Written last: a directory with one is complete. */
#ifndef HL_CKPT_MANIFEST_H
#define HL_CKPT_MANIFEST_H

#include "ckpt_model.h"

#define HL_CKPT_MANIFEST  "manifest.json"
#define HL_CKPT_USER_FILE "user.bin"
#define HL_CKPT_VERSION_KEPT                                                                       \
    2 /* of a checkpoint that refers to records in stores; of all others 1 */

#define HL_CKPT_MOST_RANKS 65536u

/* A rank's data file, as the manifest knows it. */
struct hl_ckpt_file {
    uint64_t bytes, nblocks;
    uint64_t table_sum; /* of its table, which has the sum of every block */
};

struct hl_ckpt_manifest {
    uint32_t version; /* when it is written: whether blocks may be kept */
    uint64_t id;      /* in every file of the checkpoint */
    uint64_t serial;  /* of the newest in its root when it was saved, plus 1 */
    uint64_t step;
    double loss_scale; /* 0: none */
    uint32_t nsteps_finite;
    uint64_t user_bytes, user_sum;
    uint32_t nranks;
    struct hl_ckpt_file *files; /* (nranks,) */
    struct hl_ckpt_model model;
};

/* rank-00000.bin */
#define HL_CKPT_FILE_NAME_BYTES 32
void hl_ckpt_file_name(uint32_t rank, char name[HL_CKPT_FILE_NAME_BYTES]);

/* Under its name when it is whole and on the drive. Nothing is left of it after an error. */
int hl_ckpt_manifest_write(int dirfd, const struct hl_ckpt_manifest *m);

/**
 * @param dir  [in]  for messages
 * @param out  [out] end it with hl_ckpt_manifest_free()
 *
 * Errors  0, -ENOENT (not complete), HAUL_E_CHECKSUM, HAUL_E_FORMAT, HAUL_E_CONFIG (of a later version)
 */
int hl_ckpt_manifest_read(int dirfd, const char *dir, struct hl_ckpt_manifest *out);
void hl_ckpt_manifest_free(struct hl_ckpt_manifest *m);

/* The text of a manifest, checked and decoded; what the fuzzer feeds. */
int hl_ckpt_manifest_parse(const char *what, const char *text, size_t bytes,
                           struct hl_ckpt_manifest *out);

/* A small file whole or not at all: temp, fsync, rename, fsync of the directory. */
int hl_ckpt_publish(int dirfd, const char *name, const void *data, size_t bytes);

#endif
