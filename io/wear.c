/* wear.c: the drive behind a directory, and how long it lasts at the present rate. */
#include "wear.h"

#include <fcntl.h>
#include <linux/nvme_ioctl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "clock.h"
#include "store.h"
#include "sys.h"

/* NVM Express base specification, "SMART / Health Information": percentage used is byte 5, data units
 * written are bytes 48..63, in thousands of 512 bytes. */
void hl_smart_decode(const uint8_t log[512], struct hl_smart *out)
{
    uint64_t units = 0;

    for (int i = 7; i >= 0; i--)
        units = units << 8 | log[48 + i];
    out->written_bytes = units > UINT64_MAX / 512000 ? UINT64_MAX : units * 512000;
    out->used_fraction = log[5] / 100.0;
}

static int read_line(const char *path, char *buf, size_t len)
{
    int n = hl_sys_read_text(path, buf, len);

    if (n < 0)
        return n;
    while (n > 0 && (buf[n - 1] == '\n' || buf[n - 1] == ' '))
        buf[--n] = '\0';
    return n;
}

void hl_drive_find(const char *sys_root, uint32_t major, uint32_t minor, struct haul_wear *out)
{
    char path[512], target[512], text[128], *name;
    ssize_t n;

    out->device[0] = out->model[0] = '\0';
    out->rotational = -1;
    snprintf(path, sizeof path, "%s/dev/block/%u:%u", sys_root, major, minor);
    n = readlink(path, target, sizeof target - 1);
    if (n <= 0)
        return;
    target[n] = '\0';
    snprintf(path, sizeof path, "%s/dev/block/%u:%u/partition", sys_root, major, minor);
    if (access(path, F_OK) == 0 && strrchr(target, '/'))
        *strrchr(target, '/') = '\0'; /* the drive, not the partition */
    name = strrchr(target, '/');
    snprintf(out->device, sizeof out->device, "%.31s", name ? name + 1 : target);
    snprintf(path, sizeof path, "%s/block/%s/device/model", sys_root, out->device);
    if (read_line(path, text, sizeof text) > 0)
        snprintf(out->model, sizeof out->model, "%.63s", text);
    snprintf(path, sizeof path, "%s/block/%s/queue/rotational", sys_root, out->device);
    if (read_line(path, text, sizeof text) > 0)
        out->rotational = atoi(text);
}

/* Needs the right to open the controller; without it the figures stay unknown. */
static int read_smart(const char *device, struct hl_smart *out)
{
    uint8_t log[512] = {0};
    struct nvme_admin_cmd cmd = {.opcode = 2, /* get log page */
                                 .nsid = UINT32_MAX,
                                 .addr = (uintptr_t)log,
                                 .data_len = sizeof log,
                                 .cdw10 = 2 | (sizeof log / 4 - 1) << 16};
    unsigned controller;
    char path[32];
    int fd, rc;

    if (sscanf(device, "nvme%u", &controller) != 1)
        return -ENOTSUP;
    snprintf(path, sizeof path, "/dev/nvme%u", controller);
    fd = hl_sys_open(AT_FDCWD, path, O_RDONLY, 0);
    if (fd < 0)
        return fd;
    rc = ioctl(fd, NVME_IOCTL_ADMIN_CMD, &cmd) ? -EIO : 0;
    hl_sys_close(fd);
    if (rc == 0)
        hl_smart_decode(log, out);
    return rc;
}

void hl_wear_project(struct haul_wear *w, const struct hl_smart *smart, uint64_t rated_bytes,
                     uint64_t store_written_bytes)
{
    w->used_fraction = w->life_left_s = -1;
    w->rated_bytes = rated_bytes;
    if (smart) {
        w->drive_written_bytes = smart->written_bytes;
        w->used_fraction = smart->used_fraction;
        if (!rated_bytes && smart->used_fraction > 0)
            w->rated_bytes = (uint64_t)((double)smart->written_bytes / smart->used_fraction);
    } else if (rated_bytes) {
        /* Only what this store wrote is known: at least so much is used. */
        w->used_fraction = (double)store_written_bytes / (double)rated_bytes;
    }
    if (w->rated_bytes && w->used_fraction >= 0 && w->write_bytes_per_s > 0) {
        double left = 1 - w->used_fraction;

        w->life_left_s = left > 0 ? left * (double)w->rated_bytes / w->write_bytes_per_s : 0;
    }
}

int haul_store_wear(struct haul_store *store, uint32_t dir, struct haul_wear *out)
{
    struct haul_wear w = {0};
    struct haul_store_stats stats = {.struct_size = sizeof stats};
    struct hl_smart smart = {0};
    double seconds;
    struct stat st;
    int rc = HL_GIVEN(store), known;

    rc = rc ? rc : HL_GIVEN(out);
    if (rc < 0)
        return rc;
    w.struct_size = out->struct_size;
    seconds = (double)(hl_clock_ns() - store->opened_ns) / 1e9;
    if (out->struct_size < sizeof w || dir >= store->ndirs)
        return hl_fail(out->struct_size < sizeof w ? HAUL_E_ABI : -EINVAL,
                       "wear of directory %u of %u, struct_size %zu", dir, store->ndirs,
                       out->struct_size);
    rc = haul_store_stat(store, &stats);
    if (rc == 0)
        rc = hl_sys_fstat(store->dirs[dir].dirfd, &st);
    if (rc < 0)
        return rc;
    hl_drive_find("/sys", major(st.st_dev), minor(st.st_dev), &w);
    known = read_smart(w.device, &smart) == 0;
    /* One drive's part of what the store writes: cells are dealt by weight. */
    w.write_bytes_per_s = seconds > 0 ? (double)stats.write.disk_bytes / seconds : 0;
    w.write_bytes_per_s *= (double)store->dirs[dir].ncells * store->opts.block_bytes /
                           (double)store->opts.capacity_bytes;
    hl_wear_project(&w, known ? &smart : NULL, store->opts.rated_bytes_written / store->ndirs,
                    stats.written_ever_bytes / store->ndirs);
    *out = w;
    return 0;
}
