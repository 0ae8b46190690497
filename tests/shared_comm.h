/*
 * shared_comm.h: a communicator of scalars between processes that were forked from one, for tests: values
 * and meetings in memory that they share. What is queued is not there.
 */
#ifndef SHARED_COMM_H
#define SHARED_COMM_H

#include "haul/comm.h"

struct shared_world;

/* Before the fork. */
struct shared_world *shared_world_open(uint32_t nranks);
void shared_world_close(struct shared_world *world);

/* After it. */
struct haul_comm *shared_comm_open(struct shared_world *world, uint32_t rank,
                                   struct haul_device *dev, double timeout_s);

#endif
