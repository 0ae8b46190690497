/* safetensors_writer.h: what a writer holds.
 *
 *   safetensors_layout.c   which tensor goes where; the headers
 *   safetensors_write.c    files of the right size, values in pieces
 *   safetensors_publish.c  names: temporary ones, then the final ones
 */
#ifndef HL_SAFETENSORS_WRITER_H
#define HL_SAFETENSORS_WRITER_H

#include "haul/safetensors.h"
#include "safetensors_header.h"

#define HL_ST_ALIGN 64 /* of the data in the file */

struct hl_st_slot {
    char *name; /* owned by the layout's names */
    const struct hl_st_dtype *dtype;
    uint64_t nelems, bytes, written; /* written: elements */
    uint32_t shard;
    uint64_t at; /* in its file; while it is laid out, in its data */
};

struct hl_st_shard {
    int fd;
    char *temp, *name;                 /* in the directory; temp NULL: not there */
    uint64_t data_bytes, header_bytes; /* the length in front not counted */
};

struct haul_safetensors_writer {
    int dirfd;
    char *name;               /* last part of the path */
    char *index_name;         /* NAME.index.json */
    struct hl_st_slot *slots; /* (nslots,) in the order of the declarations */
    uint64_t nslots;
    struct hl_st_shard *shards; /* (nshards,) */
    uint32_t nshards;
    uint16_t *piece; /* HL_ST_PIECE_ELEMS */
    json_t *metadata;
    int finished;
};

#define HL_ST_PIECE_ELEMS 32768u

/* ---- layout ---- */

/* Check the declarations and give each its shard and its place. Fills slots, nslots and shards' sizes. */
int hl_st_layout_make(struct haul_safetensors_writer *w, const struct haul_safetensors_decl *decls,
                      uint64_t ndecls, uint64_t shard_bytes);

/* The header of a shard, its length in front, padded; end it with hl_sys_free(). Slots of the shard get
 * their place in the file. */
int hl_st_layout_header(struct haul_safetensors_writer *w,
                        const struct haul_safetensors_decl *decls, uint32_t shard, void **text,
                        size_t *bytes);

/* The index of all shards, as JSON; end it with json_decref(). */
int hl_st_layout_index(const struct haul_safetensors_writer *w, json_t **out);

/* ---- publish ---- */

/* Give shards their final names. */
int hl_st_publish_names(struct haul_safetensors_writer *w);
/* A file under a temporary name beside the final one. */
int hl_st_publish_create(struct haul_safetensors_writer *w, const char *name, char **temp, int *fd);
/* All shards are flushed: rename them, then the index; what the path named before goes. */
int hl_st_publish(struct haul_safetensors_writer *w);

#endif
