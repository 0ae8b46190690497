/* safetensors_publish.c: files are written under temporary names and take their own at the end. */
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "clock.h"
#include "fail.h"
#include "json_text.h"
#include "safetensors_set.h"
#include "safetensors_writer.h"
#include "sys.h"
#include "sys_file.h"

#define NAME_BYTES 512

int hl_st_publish_names(struct haul_safetensors_writer *w)
{
    size_t stem = strlen(w->name) - strlen(HL_ST_SUFFIX);
    char name[NAME_BYTES];
    int rc;

    snprintf(name, sizeof name, "%s.index.json", w->name);
    rc = hl_sys_strdup(name, &w->index_name);
    for (uint32_t s = 0; rc == 0 && s < w->nshards; s++) {
        snprintf(name, sizeof name, "%s", w->name);
        if (w->nshards > 1)
            snprintf(name, sizeof name, "%.*s-%05u-of-%05u" HL_ST_SUFFIX, (int)stem, w->name, s + 1,
                     w->nshards);
        rc = hl_sys_strdup(name, &w->shards[s].name);
    }
    return rc;
}

int hl_st_publish_create(struct haul_safetensors_writer *w, const char *name, char **temp, int *fd)
{
    char text[NAME_BYTES];
    int rc;

    /* Nobody else's name: two that save to one path must not write into one file. */
    snprintf(text, sizeof text, "%s.%ld-%" PRIx64 ".tmp", name, (long)getpid(), hl_clock_ns());
    rc = hl_sys_strdup(text, temp);
    if (rc < 0)
        return rc;
    *fd = hl_sys_open(w->dirfd, *temp, O_RDWR | O_CREAT | O_EXCL, 0644);
    if (*fd >= 0)
        return 0;
    rc = *fd;
    hl_sys_free(*temp);
    *temp = NULL;
    return rc;
}

static int rename_shard(struct haul_safetensors_writer *w, struct hl_st_shard *shard)
{
    int rc = hl_sys_rename(w->dirfd, shard->temp, shard->name);

    if (rc < 0)
        return rc;
    hl_sys_free(shard->temp);
    shard->temp = NULL;
    return 0;
}

static int unlink_if_there(int dirfd, const char *name)
{
    int rc = hl_sys_unlink(dirfd, name);

    return rc == -ENOENT ? 0 : rc;
}

static int write_index(struct haul_safetensors_writer *w, int fd)
{
    json_t *root;
    size_t bytes;
    void *text;
    int rc = hl_st_layout_index(w, &root);

    if (rc < 0)
        return rc;
    bytes = json_dumpb(root, NULL, 0, JSON_INDENT(2));
    rc = hl_sys_alloc(bytes, &text);
    if (rc == 0) {
        json_dumpb(root, text, bytes, JSON_INDENT(2));
        rc = hl_sys_pwrite_all(fd, text, bytes, 0);
        hl_sys_free(text);
    }
    json_decref(root);
    return rc == 0 ? hl_sys_fsync(fd) : rc;
}

/* The index is whole on the drive before any file of the old set is replaced. */
static int publish_set(struct haul_safetensors_writer *w)
{
    char *temp = NULL;
    int fd = -1, rc = hl_st_publish_create(w, w->index_name, &temp, &fd);

    if (rc < 0)
        return rc;
    rc = write_index(w, fd);
    hl_sys_close(fd);
    if (rc == 0)
        rc = unlink_if_there(w->dirfd, w->index_name);
    if (rc == 0)
        rc = hl_sys_fsync(w->dirfd);
    for (uint32_t s = 0; rc == 0 && s < w->nshards; s++)
        rc = rename_shard(w, &w->shards[s]);
    if (rc == 0)
        rc = hl_sys_rename(w->dirfd, temp, w->index_name);
    if (rc < 0) {
        char text[HL_ERROR_TEXT_BYTES];

        snprintf(text, sizeof text, "%s", haul_last_error());
        (void)hl_sys_unlink(w->dirfd, temp);
        hl_fail_text(rc, text);
    }
    hl_sys_free(temp);
    return rc;
}

int hl_st_publish(struct haul_safetensors_writer *w)
{
    int rc = w->nshards > 1 ? publish_set(w) : rename_shard(w, &w->shards[0]);

    if (rc == 0)
        rc = hl_sys_fsync(w->dirfd);
    if (rc < 0)
        return rc;
    /* What the path named before in the other form would else be read instead, or beside it. */
    rc = unlink_if_there(w->dirfd, w->nshards > 1 ? w->name : w->index_name);
    return rc < 0 ? rc : hl_sys_fsync(w->dirfd);
}
