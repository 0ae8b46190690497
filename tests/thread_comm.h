/*
 * thread_comm.h: a communicator between threads of one process, for tests. Each rank has a device of its
 * own (emulated); pieces are copied straight from the peers' memory, in stream order.
 */
#ifndef THREAD_COMM_H
#define THREAD_COMM_H

#include "haul/comm.h"

struct thread_world;

/* World of nranks; end it after its communicators. */
struct thread_world *thread_world_open(uint32_t nranks);
void thread_world_close(struct thread_world *world);

/* Rank r's communicator. A peer that is missed for timeout_s is an error that names it. */
struct haul_comm *thread_comm_open(struct thread_world *world, uint32_t rank,
                                   struct haul_device *dev, double timeout_s);

/* The rank answers no more: what it queues or calls from now on fails, as if its process had died. */
void thread_comm_die(struct haul_comm *comm);

#endif
