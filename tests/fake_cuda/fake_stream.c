/* fake_stream.c: streams as threads, events as (stream, ticket). */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "fake_state.h"

#undef cuEventElapsedTime
EXPORT CUresult cuEventElapsedTime(float *ms, CUevent start, CUevent end);

/* ---- running ---- */

static void sleep_us(uint64_t us)
{
    struct timespec ts = {.tv_nsec = (long)(us * 1000)};

    nanosleep(&ts, NULL);
}

/* xorshift64. A slow stream is held back at every operation, others at every fourth. */
static uint64_t delay_us(CUstream s)
{
    uint64_t x = s->random;

    if (!x)
        return 0;
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    s->random = x;
    return s->slow || x >> 62 == 0 ? (x >> 20) % (fake.config.delay_us + 1) : 0;
}

static void lose_if_planned(void)
{
    if (fake.lose_in > 0 && --fake.lose_in == 0)
        fake.lost = (CUresult)fake.lose_result;
}

static void *stream_main(void *arg)
{
    CUstream s = arg;

    pthread_mutex_lock(&fake.lock);
    for (;;) {
        struct fake_op *op = s->head;
        uint64_t us;

        if (!op && s->closing)
            break;
        if (!op) {
            pthread_cond_wait(&s->work, &fake.lock);
            continue;
        }
        s->running = op;
        s->head = op->next;
        us = delay_us(s);
        if (us) {
            pthread_mutex_unlock(&fake.lock);
            sleep_us(us);
            pthread_mutex_lock(&fake.lock);
        }
        lose_if_planned();
        if (fake.lost == CUDA_SUCCESS) {
            pthread_mutex_unlock(&fake.lock);
            op->run(op);
            pthread_mutex_lock(&fake.lock);
        }
        s->running = NULL;
        s->done = op->ticket;
        free(op->owned);
        free(op);
        pthread_cond_broadcast(&fake.progress);
    }
    pthread_mutex_unlock(&fake.lock);
    return NULL;
}

CUresult fake_push(CUstream s, const struct fake_op *op)
{
    struct fake_op *copy = malloc(sizeof *copy);

    if (!copy)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *copy = *op;
    copy->next = NULL;
    copy->ticket = ++s->queued;
    if (s->head)
        s->tail->next = copy;
    else
        s->head = copy;
    s->tail = copy;
    pthread_cond_signal(&s->work);
    return CUDA_SUCCESS;
}

void fake_await(CUstream s, uint64_t ticket)
{
    while (s->done < ticket)
        pthread_cond_wait(&fake.progress, &fake.lock);
}

/* ---- opening and closing ---- */

static CUresult start(CUstream *out)
{
    CUstream s = calloc(1, sizeof *s);
    uint64_t n = ++fake.nstreams;

    if (!s)
        return CUDA_ERROR_OUT_OF_MEMORY;
    pthread_cond_init(&s->work, NULL);
    if (fake.config.seed) {
        s->random = (fake.config.seed + n * UINT64_C(0x9e3779b97f4a7c15)) | 1;
        s->slow = (fake.config.seed >> (n - 1) % 5 & 1) != 0;
    }
    s->open = 1;
    s->next = fake.streams;
    fake.streams = s;
    if (pthread_create(&s->thread, NULL, stream_main, s) != 0) {
        s->open = 0;
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *out = s;
    return CUDA_SUCCESS;
}

/* Under lock, which is let go of meanwhile. */
static void stop(CUstream s)
{
    s->open = 0;
    s->closing = 1;
    pthread_cond_signal(&s->work);
    pthread_mutex_unlock(&fake.lock);
    pthread_join(s->thread, NULL);
    pthread_mutex_lock(&fake.lock);
}

void fake_end_default_stream(void)
{
    if (fake.default_stream)
        stop(fake.default_stream);
    fake.default_stream = NULL;
}

CUstream fake_stream(CUstream stream)
{
    CUstream s = fake.streams;

    if (!stream) {
        if (!fake.default_stream)
            (void)start(&fake.default_stream);
        return fake.default_stream;
    }
    while (s && s != stream)
        s = s->next;
    if (s && s->open)
        return s;
    (void)fake_violation(CUDA_ERROR_INVALID_HANDLE, "%p is not an open stream", (void *)stream);
    return NULL;
}

CUresult cuStreamCreateWithPriority(CUstream *out, unsigned flags, int priority)
{
    CUresult res = fake_enter("cuStreamCreateWithPriority", 1);

    if (res != CUDA_SUCCESS)
        return res;
    if (flags != CU_STREAM_NON_BLOCKING || priority > 0 || priority < -5)
        return fake_leave(fake_violation(CUDA_ERROR_INVALID_VALUE,
                                         "stream with flags %u, priority %d", flags, priority));
    res = start(out);
    if (res != CUDA_SUCCESS)
        return fake_leave(res);
    (*out)->priority = priority;
    fake.live++;
    return fake_leave(CUDA_SUCCESS);
}

/* haul does not call it: suites do, here and on a GPU. */
CUresult cuStreamGetPriority(CUstream stream, int *priority)
{
    CUresult res = fake_enter("cuStreamGetPriority", 1);
    CUstream s;

    if (res != CUDA_SUCCESS)
        return res;
    s = fake_stream(stream);
    if (!s)
        return fake_leave(CUDA_ERROR_INVALID_HANDLE);
    *priority = s->priority;
    return fake_leave(CUDA_SUCCESS);
}

CUresult cuStreamDestroy(CUstream stream)
{
    CUresult res = fake_enter_release("cuStreamDestroy");
    CUstream s = stream ? fake_stream(stream) : NULL;

    if (!s)
        return fake_leave(CUDA_ERROR_INVALID_HANDLE);
    stop(s);
    fake.live--;
    return fake_leave(res);
}

/* A failure that is told here is an earlier one's: the wait has taken place. */
CUresult cuStreamSynchronize(CUstream stream)
{
    CUresult res = fake_enter_release("cuStreamSynchronize");
    CUstream s = fake_stream(stream);

    if (!s)
        return fake_leave(CUDA_ERROR_INVALID_HANDLE);
    fake_await(s, s->queued);
    return fake_leave(res != CUDA_SUCCESS ? res : fake.lost);
}

/* ---- events ---- */

static CUevent find_event(CUevent event)
{
    CUevent ev = fake.events;

    while (ev && ev != event)
        ev = ev->next;
    if (ev && ev->open)
        return ev;
    (void)fake_violation(CUDA_ERROR_INVALID_HANDLE, "%p is not an event", (void *)event);
    return NULL;
}

CUresult cuEventCreate(CUevent *out, unsigned flags)
{
    CUresult res = fake_enter("cuEventCreate", 1);
    CUevent ev;

    if (res != CUDA_SUCCESS)
        return res;
    ev = calloc(1, sizeof *ev);
    if (!ev)
        return fake_leave(CUDA_ERROR_OUT_OF_MEMORY);
    ev->open = 1;
    ev->flags = flags;
    ev->next = fake.events;
    fake.events = ev;
    fake.live++;
    *out = ev;
    return fake_leave(CUDA_SUCCESS);
}

/* Its struct stays: a queued record may still write into it. */
CUresult cuEventDestroy(CUevent event)
{
    CUresult res = fake_enter_release("cuEventDestroy");
    CUevent ev = find_event(event);

    if (!ev)
        return fake_leave(CUDA_ERROR_INVALID_HANDLE);
    ev->open = 0;
    fake.live--;
    return fake_leave(res);
}

static void run_record(struct fake_op *op)
{
    uint64_t now = fake_now_ns();

    pthread_mutex_lock(&fake.lock);
    if (op->record.event->nrecords == op->record.record)
        op->record.event->reached_ns = now;
    pthread_mutex_unlock(&fake.lock);
}

CUresult cuEventRecord(CUevent event, CUstream stream)
{
    CUresult res = fake_enter("cuEventRecord", 1);
    struct fake_op op = {.run = run_record};
    CUstream s;
    CUevent ev;

    if (res != CUDA_SUCCESS)
        return res;
    s = fake_stream(stream);
    ev = find_event(event);
    if (!s || !ev)
        return fake_leave(CUDA_ERROR_INVALID_HANDLE);
    op.record.event = ev;
    op.record.record = ++ev->nrecords;
    ev->stream = s;
    ev->ticket = s->queued + 1;
    return fake_leave(fake_push(s, &op));
}

CUresult cuEventQuery(CUevent event)
{
    CUresult res = fake_enter("cuEventQuery", 1);
    CUevent ev;

    if (res != CUDA_SUCCESS)
        return res;
    ev = find_event(event);
    if (!ev)
        return fake_leave(CUDA_ERROR_INVALID_HANDLE);
    if (ev->stream && ev->stream->done < ev->ticket)
        return fake_leave(CUDA_ERROR_NOT_READY);
    return fake_leave(CUDA_SUCCESS);
}

CUresult cuEventSynchronize(CUevent event)
{
    CUresult res = fake_enter_release("cuEventSynchronize");
    CUevent ev = find_event(event);

    if (!ev)
        return fake_leave(CUDA_ERROR_INVALID_HANDLE);
    if (ev->stream)
        fake_await(ev->stream, ev->ticket);
    return fake_leave(res != CUDA_SUCCESS ? res : fake.lost);
}

/* Signed, from the times at which the two were reached. */
CUresult cuEventElapsedTime(float *ms, CUevent start, CUevent end)
{
    CUresult res = fake_enter("cuEventElapsedTime", 1);
    CUevent a, b;

    if (res != CUDA_SUCCESS)
        return res;
    a = find_event(start);
    b = find_event(end);
    if (!a || !b || !a->stream || !b->stream || ((a->flags | b->flags) & CU_EVENT_DISABLE_TIMING))
        return fake_leave(
            fake_violation(CUDA_ERROR_INVALID_HANDLE, "time between events that have none"));
    if (a->stream->done < a->ticket || b->stream->done < b->ticket)
        return fake_leave(CUDA_ERROR_NOT_READY);
    *ms = (float)((double)((int64_t)b->reached_ns - (int64_t)a->reached_ns) * 1e-6);
    return fake_leave(CUDA_SUCCESS);
}

static void run_wait(struct fake_op *op)
{
    pthread_mutex_lock(&fake.lock);
    fake_await(op->wait.stream, op->wait.ticket);
    pthread_mutex_unlock(&fake.lock);
}

/* For the latest record now; never recorded is no wait. */
CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags)
{
    CUresult res = fake_enter("cuStreamWaitEvent", 1);
    struct fake_op op = {.run = run_wait};
    CUstream s;
    CUevent ev;

    if (res != CUDA_SUCCESS)
        return res;
    s = fake_stream(stream);
    ev = find_event(event);
    if (!s || !ev || flags)
        return fake_leave(CUDA_ERROR_INVALID_HANDLE);
    if (!ev->stream)
        return fake_leave(CUDA_SUCCESS);
    op.wait.stream = ev->stream;
    op.wait.ticket = ev->ticket;
    return fake_leave(fake_push(s, &op));
}
