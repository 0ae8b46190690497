/*
 * comm_mpi_hand.c: a thread that makes MPI's calls where a host function may not: an MPI that knows CUDA asks
 * the driver about every buffer, and a host function of the driver that calls it may wait for itself. The
 * host function hands its exchange over and sleeps.
 */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

#include "comm_mpi.h"

struct mpi_hand {
    struct mpi_comm *comm;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t moved;
    /* Under the lock. */
    const struct mpi_call *asked; /* NULL: nothing to do, or done */
    int closing, rc;
    char text[MPI_ERROR_BYTES];
};

static void *hand_main(void *arg)
{
    struct mpi_hand *h = arg;

    pthread_mutex_lock(&h->lock);
    for (;;) {
        while (!h->asked && !h->closing)
            pthread_cond_wait(&h->moved, &h->lock);
        if (!h->asked)
            break;
        pthread_mutex_unlock(&h->lock);
        h->rc = hl_mpi_exchange_of(h->comm, h->asked);
        snprintf(h->text, sizeof h->text, "%s", h->rc < 0 ? haul_last_error() : "");
        pthread_mutex_lock(&h->lock);
        h->asked = NULL;
        pthread_cond_broadcast(&h->moved);
    }
    pthread_mutex_unlock(&h->lock);
    return NULL;
}

int hl_mpi_hand_run(struct mpi_hand *h, const struct mpi_call *call)
{
    int rc;

    pthread_mutex_lock(&h->lock);
    h->asked = call;
    pthread_cond_broadcast(&h->moved);
    while (h->asked)
        pthread_cond_wait(&h->moved, &h->lock);
    rc = h->rc;
    pthread_mutex_unlock(&h->lock);
    return rc < 0 ? haul_error_set(rc, "%s", h->text) : 0;
}

/* The trainer's signals are not this thread's. */
static int start(struct mpi_hand *h)
{
    sigset_t all, before;
    int err;

    sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    err = pthread_create(&h->thread, NULL, hand_main, h);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    return err ? haul_error_set(-err, "no thread for MPI's calls") : 0;
}

int hl_mpi_hand_open(struct mpi_comm *m, struct mpi_hand **out)
{
    struct mpi_hand *h = calloc(1, sizeof *h);
    int rc;

    if (!h)
        return haul_error_set(-ENOMEM, "no memory for a thread's state");
    h->comm = m;
    pthread_mutex_init(&h->lock, NULL);
    pthread_cond_init(&h->moved, NULL);
    rc = start(h);
    if (rc < 0)
        free(h);
    else
        *out = h;
    return rc;
}

void hl_mpi_hand_close(struct mpi_hand *h)
{
    if (!h)
        return;
    pthread_mutex_lock(&h->lock);
    h->closing = 1;
    pthread_cond_broadcast(&h->moved);
    pthread_mutex_unlock(&h->lock);
    pthread_join(h->thread, NULL);
    pthread_cond_destroy(&h->moved);
    pthread_mutex_destroy(&h->lock);
    free(h);
}
