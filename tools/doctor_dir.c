/* doctor_dir.c: the file system behind a directory that is to hold a store. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

#include "doctor.h"
#include "haul/size.h"
#include "sys.h"
#include "sys_file.h"

static const char not_ours[] = "name a directory that this user may write to";

static void check_space(struct hl_doctor *doc, const char *dir, const struct hl_fs *fs)
{
    char size[32];

    haul_format_size(fs->free_bytes, size, sizeof size);
    if (fs->free_bytes < UINT64_C(1000000000))
        hl_doctor_add(doc, "space", HL_HEALTH_WARN, "free space, or name another directory",
                      "%s: only %s free on %s", dir, size, fs->name);
    else
        hl_doctor_add(doc, "space", HL_HEALTH_OK, NULL, "%s: %s free on %s", dir, size, fs->name);
}

/* What is known of a file system beyond what it says of itself. */
static const char *caution(const char *fs)
{
    if (strcmp(fs, "tmpfs") == 0)
        return "it is host memory: name a directory on a drive";
    if (strcmp(fs, "overlayfs") == 0 || strcmp(fs, "overlay") == 0)
        return "mount a volume into the container: overlayfs may refuse direct I/O later";
    if (strcmp(fs, "btrfs") == 0)
        return "chattr +C on the directory: with checksums btrfs buffers direct I/O";
    if (strcmp(fs, "nfs") == 0)
        return "name a directory on a local drive";
    return NULL;
}

/* 0: nothing can be written there. */
static int check_direct(struct hl_doctor *doc, const char *dir, int fd, const struct hl_fs *fs)
{
    const char *remedy = caution(fs->name);
    uint32_t mem = 0, offset = 0;
    int file = hl_sys_open(fd, ".", O_TMPFILE | O_RDWR | O_DIRECT, 0600);

    if (file == -EACCES || file == -EPERM || file == -EROFS) {
        hl_doctor_add(doc, "directory", HL_HEALTH_FAIL, not_ours, "%s: %s", dir,
                      haul_strerror(file));
        return 0;
    }
    if (file < 0) {
        hl_doctor_add(
            doc, "direct I/O", HL_HEALTH_WARN,
            remedy != NULL ? remedy : "name a directory on ext4 or xfs",
            "%s: %s refuses an unnamed file with O_DIRECT (%s); I/O is buffered or files named",
            dir, fs->name, haul_strerror(file));
        return 1;
    }
    if (hl_sys_dio_align(file, &mem, &offset) < 0 || offset == 0)
        hl_doctor_add(doc, "direct I/O", remedy != NULL ? HL_HEALTH_WARN : HL_HEALTH_OK, remedy,
                      "%s: %s takes it; alignment not told, 4096 assumed", dir, fs->name);
    else
        hl_doctor_add(doc, "direct I/O", remedy != NULL ? HL_HEALTH_WARN : HL_HEALTH_OK, remedy,
                      "%s: %s takes it, aligned to %u bytes (memory %u)", dir, fs->name, offset,
                      mem);
    hl_sys_close(file);
    return 1;
}

int hl_doctor_dir(struct hl_doctor *doc, const char *dir)
{
    struct hl_fs fs;
    int fd = hl_sys_open(AT_FDCWD, dir, O_RDONLY | O_DIRECTORY, 0);
    int usable = 0;

    if (fd < 0) {
        hl_doctor_add(doc, "directory", HL_HEALTH_FAIL,
                      fd == -EACCES ? not_ours : "create it, or correct the name", "%s: %s", dir,
                      haul_strerror(fd));
        return 0;
    }
    if (hl_sys_statfs(fd, &fs) < 0) {
        hl_doctor_add(doc, "directory", HL_HEALTH_FAIL, NULL, "%s", haul_last_error());
    } else {
        check_space(doc, dir, &fs);
        usable = check_direct(doc, dir, fd, &fs);
    }
    hl_sys_close(fd);
    return usable;
}
