/* safetensors_set.h: what an open haul_safetensors holds. */
#ifndef HL_SAFETENSORS_SET_H
#define HL_SAFETENSORS_SET_H

#include "haul/safetensors.h"
#include "safetensors_header.h"

#define HL_ST_SUFFIX       ".safetensors"
#define HL_ST_INDEX_SUFFIX ".safetensors.index.json"

struct hl_st_file {
    char *path; /* for messages and for the user */
    char *name; /* in its directory */
    int fd;
    uint64_t data_at; /* where the data begins in the file */
    struct hl_st_header header;
};

struct haul_safetensors {
    struct hl_st_file *files; /* (nfiles,) */
    uint32_t nfiles, files_cap;
    struct hl_st_tensor *tensors;        /* (ntensors,) those that are listed */
    const struct hl_st_tensor **by_name; /* (ntensors,) sorted */
    uint64_t ntensors;
};

#endif
