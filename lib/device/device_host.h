/*
 * device_host.h: the emulated device from the inside. Only for the device_host*.c files.
 *
 * Locks are spin locks around a few instructions and are never held together, nor while sleeping.
 */
#ifndef HL_DEVICE_HOST_H
#define HL_DEVICE_HOST_H

#include "device_ops.h"
#include "fail.h"
#include "wait.h"
#include <pthread.h>

#define HOST_RING 1024 /* operations a stream holds, the running one included */

struct host_device;
struct host_stream;

/* ---- memory (device_host_mem.c) ---- */

struct host_alloc {
    char *start;
    uint64_t bytes;     /* as asked for */
    void *map;          /* a mapping of its own, or NULL: from the heap */
    uint64_t map_bytes; /* of the mapping */
};

struct host_mem {
    uint64_t cap_bytes; /* UINT64_MAX: none */
    struct hl_spin lock;
    /* Under the lock. */
    uint64_t used_bytes, peak_bytes;
    uint64_t coming_bytes;   /* granted to allocations that are still being made */
    struct host_alloc *live; /* (nlive,) sorted by start */
    uint64_t nlive, room;
};

int hl_device_host_alloc(struct haul_device *dev, uint64_t bytes, void **out);
void hl_device_host_free(struct haul_device *dev, void *ptr);
int hl_device_host_mem_info(struct haul_device *dev, struct haul_device_mem *out);
/* Free whatever was left. */
void hl_device_host_mem_end(struct host_mem *mem);
/* -EINVAL unless [p, p + n * elem_bytes) is inside one live allocation. O(log n). */
int hl_device_host_check(struct host_device *dev, const char *what, const void *p, uint64_t n,
                         uint64_t elem_bytes);

/* -EINVAL when the two ranges share a byte. */
int hl_device_host_check_apart(const char *what, const void *a, uint64_t a_bytes, const void *b,
                               uint64_t b_bytes);

/* ---- links (device_host_link.c) ---- */

struct host_lane {
    _Atomic uint64_t busy_ns, bytes;
};

/* One direction of PCIe: one copy at a time, on an emulated time line. */
struct host_link {
    double bytes_per_s; /* 0: as fast as memcpy */
    uint64_t latency_ns;
    struct host_lane *lane;
    struct hl_gate freed;
    struct hl_spin lock;
    /* Under the lock. Copies of a class ([1]: urgent) are served in order of arrival. */
    int held;
    uint64_t issued[2], serving[2];
    /* Of the holder. */
    uint64_t free_ns; /* when the last chunk ends */
};

/* Copy, no faster than the link. begin_ns: when the copy could have begun; returns when it ended,
 * on the emulated time line (not later than now). */
uint64_t hl_device_host_link_copy(struct host_link *link, void *dst, const void *src,
                                  uint64_t bytes, int urgent, uint64_t begin_ns);

/* ---- streams (device_host_stream.c) ---- */

/*
 * Every operation gets a ticket, its number in its stream. Work of a stream runs in order, so "ticket t
 * is done" is one comparison with the stream's counter, and an event is just (stream, ticket). Streams
 * are therefore kept until the device is closed, and a later open uses a closed one again, its counter
 * going on; not one that has failed, so that an event can still say what happened.
 */
struct host_op {
    int (*run)(struct host_stream *s, const struct host_op *op);
    int lane;           /* whose busy time it is, -1: none, or counted by run */
    int no_time;        /* takes none on the time line, as on a GPU, whose memory is that fast */
    int always;         /* runs on a failed stream too */
    uint64_t queued_ns; /* set by push */
    union {
        struct {
            void *dst;
            const void *src;
            uint64_t bytes;
            struct host_link *link; /* NULL: inside the device */
        } copy;
        struct {
            haul_device_fn fn;
            void *user;
        } launch;
        struct {
            struct host_stream *stream;
            uint64_t ticket;
        } wait;
        struct {
            struct hl_event *event;
            uint64_t record;
        } record;
        uint64_t occupy_ns;
        struct {
            void *dst;
            const void *src;
            uint64_t n;
            enum haul_dtype dst_dtype, src_dtype;
            int value; /* fill: the byte; accumulate: first; sum: parts */
        } array;
        struct hl_device_optim optim;
    };
};

struct host_stream {
    struct host_device *dev;
    struct host_stream *next; /* in the device's list of open or of closed ones */
    atomic_int is_open;
    int urgent;
    pthread_t thread;
    atomic_int closing;
    struct hl_spin lock; /* of those who queue */
    struct hl_gate work, progress;
    _Atomic uint64_t queued, done; /* last ticket given, last ticket finished */
    /* The first error: text and ticket are written before rc. */
    atomic_int rc;
    uint64_t failed_ticket;
    char text[HL_ERROR_TEXT_BYTES];
    /* Of the stream's thread. */
    uint64_t ready_ns; /* when the last operation ended, on the time line: not later than now */
    uint64_t jitter;   /* generator state; 0: no delays */
    struct host_op ring[HOST_RING];
    _Atomic uint64_t ended_ns[HOST_RING]; /* ready_ns after the latest operations, for who waits */
};

int hl_device_host_stream_open(struct haul_device *dev, int urgent, void **stream);
void hl_device_host_stream_close(struct haul_device *dev, void *stream);
int hl_device_host_stream_sync(struct haul_device *dev, void *stream);
/* Close every open stream; returns how many there were. */
unsigned hl_device_host_streams_end(struct host_device *dev);

/* Queue *op (copied); returns its ticket. Waits while the ring is full. */
uint64_t hl_device_host_push(struct host_stream *s, const struct host_op *op);
/* The stream, or NULL after hl_fail(-EINVAL): not an open stream of this device. */
struct host_stream *hl_device_host_stream(struct host_device *dev, void *stream);
int hl_device_host_reached(const struct host_stream *s, uint64_t ticket);
/* Until the ticket is done. Returns when it was, on the time line. */
uint64_t hl_device_host_await(struct host_stream *s, uint64_t ticket);
/* 0, or the error that ticket, which must be done, or one before it met: told again with hl_fail_text. */
int hl_device_host_outcome(const struct host_stream *s, uint64_t ticket);

/* ---- events (device_host_event.c) ---- */

struct hl_event {
    struct hl_event *prev, *next; /* in the device's list */
    struct hl_spin lock;
    /* Under the lock. */
    uint64_t nrecords;          /* calls of record so far; the last one counts */
    uint64_t pending;           /* records queued and not yet reached */
    struct host_stream *stream; /* latest record; NULL: never */
    uint64_t ticket;
    uint64_t reached_ns;
};

int hl_device_host_event_open(struct haul_device *dev, struct hl_event **out);
void hl_device_host_event_close(struct haul_device *dev, struct hl_event *ev);
int hl_device_host_event_record(struct haul_device *dev, struct hl_event *ev, void *stream);
int hl_device_host_event_query(struct haul_device *dev, struct hl_event *ev);
int hl_device_host_event_sync(struct haul_device *dev, struct hl_event *ev);
int hl_device_host_event_time_ns(struct haul_device *dev, struct hl_event *ev, uint64_t *out);
int hl_device_host_stream_wait(struct haul_device *dev, void *stream, struct hl_event *ev);
unsigned hl_device_host_events_end(struct host_device *dev);

/* ---- copies and kernels (device_host_copy.c, device_host_kernel.c) ---- */

int hl_device_host_copy_h2d(struct haul_device *dev, void *dst, const void *src, uint64_t bytes,
                            void *stream);
int hl_device_host_copy_d2h(struct haul_device *dev, void *dst, const void *src, uint64_t bytes,
                            void *stream);
int hl_device_host_copy_d2d(struct haul_device *dev, void *dst, const void *src, uint64_t bytes,
                            void *stream);
int hl_device_host_launch(struct haul_device *dev, void *stream, haul_device_fn fn, void *user);
int hl_device_host_call(struct haul_device *dev, void *stream, haul_device_fn fn, void *user);
int hl_device_host_convert(struct haul_device *dev, void *dst, enum haul_dtype dst_dtype,
                           const void *src, enum haul_dtype src_dtype, uint64_t n, void *stream);
int hl_device_host_accumulate(struct haul_device *dev, float *acc, const void *src,
                              enum haul_dtype src_dtype, uint64_t n, int first, void *stream);
int hl_device_host_sum(struct haul_device *dev, void *dst, const void *parts, enum haul_dtype dtype,
                       uint32_t nparts, uint64_t n, void *stream);
int hl_device_host_sumsq(struct haul_device *dev, float *partial, const void *src,
                         enum haul_dtype dtype, uint64_t n, void *stream);
int hl_device_host_fill(struct haul_device *dev, void *dst, int value, uint64_t bytes,
                        void *stream);
int hl_device_host_optim(struct haul_device *dev, const struct hl_device_optim *args, void *stream);

/* ---- the device (device_host.c) ---- */

struct host_device {
    struct haul_device base;
    unsigned kernel_threads;
    uint64_t jitter_seed;
    struct host_mem mem;
    struct host_link h2d, d2h;
    struct host_lane lane[HL_DEVICE_NLANES];
    _Atomic int64_t fail_in;   /* operations until the one that fails; 0: none will */
    struct hl_gate event_idle; /* woken when a record has been reached */
    struct hl_spin lock;
    /* Under the lock. */
    struct host_stream *open, *closed;
    uint64_t nstreams; /* opened so far */
    struct hl_event *events;
};

static inline struct host_device *host_of(struct haul_device *dev)
{
    return (struct host_device *)dev;
}

#endif
