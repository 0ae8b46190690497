/*
 * sys.h: every fallible call into libc or the kernel that the library makes.
 *
 * Each returns 0 (or a result) or -errno, counts what is alive, and in test builds
 * (HL_SYS_FAULTS) can be told to fail. Callers need no errno. A failure leaves a text
 * ("mmap of 4096 bytes: Cannot allocate memory"); a caller that knows what it was for
 * says so with hl_fail(), which replaces it.
 */
#ifndef HL_SYS_H
#define HL_SYS_H

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/types.h>

enum hl_sys_kind { HL_SYS_MEM = 0, HL_SYS_MAP, HL_SYS_FD, HL_SYS_THREAD, HL_SYS_NKINDS };

/* How many of a kind are open now. */
int64_t hl_sys_live(enum hl_sys_kind kind);

/* Test builds: the n-th fallible call from now (1 = the next) in the whole process fails with -err; 0
 * disarms. hl_sys_calls() counts fallible calls since the last arm. In other builds arm returns
 * -ENOTSUP. */
int hl_sys_fail_nth(int64_t n, int err);
int64_t hl_sys_calls(void);
/* Test builds: 1 when the armed failure has been delivered. */
int hl_sys_failed(void);
/* Counts as one fallible call and returns 0, or the armed failure. First line of every wrapper, and
 * what a caller of another library (hwloc, dlopen) puts before its call. */
int hl_sys_attempt(const char *what);

/* Memory from the heap, zeroed. bytes may be 0 (gives a unique pointer). */
int hl_sys_alloc(size_t bytes, void **out);
/* n * size, overflow checked (-EOVERFLOW). */
int hl_sys_alloc_array(size_t n, size_t size, void **out);
/* 64-byte (or more, a power of two) aligned, zeroed. */
int hl_sys_alloc_aligned(size_t align, size_t bytes, void **out);
void hl_sys_free(void *p);
int hl_sys_strdup(const char *s, char **out);

/* Each map is ended by one unmap of the same range, so nothing may be mapped over something else: never
 * MAP_FIXED. */
int hl_sys_map(void *addr, size_t bytes, int prot, int flags, int fd, off_t off, void **out);
void hl_sys_unmap(void *p, size_t bytes);
int hl_sys_madvise(void *p, size_t bytes, int advice);
int hl_sys_mlock(const void *p, size_t bytes);
/* The soft limit; UINT64_MAX: none. */
int hl_sys_rlimit(int resource, uint64_t *soft);

/* O_CLOEXEC and its like are added. */
int hl_sys_open(int dirfd, const char *path, int flags, mode_t mode);
int hl_sys_memfd(const char *name, unsigned flags);
int hl_sys_eventfd(unsigned value, int flags);
void hl_sys_close(int fd);
int hl_sys_fstat(int fd, struct stat *out);
int hl_sys_ftruncate(int fd, off_t bytes);
/* One read: up to n bytes, 0 at the end. */
ssize_t hl_sys_read(int fd, void *buf, size_t n);
/* Whole-buffer reads and writes at an offset: loop over short results. -EIO at end of file. */
int hl_sys_pread_all(int fd, void *buf, size_t n, off_t off);
int hl_sys_pwrite_all(int fd, const void *buf, size_t n, off_t off);
/* A small text file (/proc, /sys), NUL terminated; -EFBIG when it does not fit. Returns its length. */
int hl_sys_read_text(const char *path, char *buf, size_t len);
/* The same for a file that need not be there: 0 and "" when it is absent or hidden; no text then. */
int hl_sys_probe_text(const char *path, char *buf, size_t len);

/* name: at most 15 characters, shown by top -H. All signals are blocked in the new thread. */
int hl_sys_thread(const char *name, void *(*fn)(void *), void *arg, pthread_t *out);
void hl_sys_join(pthread_t thread);
/* The calling thread runs on this processor (OS index) only. */
int hl_sys_bind_thread(int pu);

#endif
