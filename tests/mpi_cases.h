/*
 * mpi_cases.h: what the cases of mpi_cases share: checks that name their rank, and a device with a communicator.
 */
#ifndef HL_MPI_CASES_H
#define HL_MPI_CASES_H

#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "comm.h"
#include "haul/mpi.h"

extern int rank, nranks, wrong;

#define CHECK(cond, ...)                                                                           \
    do {                                                                                           \
        if (!(cond)) {                                                                             \
            fprintf(stderr, "rank %d of %d, %s:%d: %s: ", rank, nranks, __FILE__, __LINE__,        \
                    #cond);                                                                        \
            fprintf(stderr, __VA_ARGS__);                                                          \
            fprintf(stderr, " (last error: %s)\n", haul_last_error());                             \
            wrong++;                                                                               \
        }                                                                                          \
    } while (0)
#define MUST(call)                                                                                 \
    do {                                                                                           \
        int must_rc = (call);                                                                      \
        CHECK(must_rc == 0, "gave %d", must_rc);                                                   \
        if (must_rc < 0)                                                                           \
            _exit(1);                                                                              \
    } while (0)

struct bench {
    struct haul_device *dev;
    struct haul_comm *comm;
    void *stream;
};

void error_says(const char *words);
/* piece_bytes 0: as by default. */
struct haul_comm_mpi_opts opts_of(double timeout_s, uint64_t piece_bytes);
struct haul_device *device(void);
struct bench bench_open(double timeout_s, uint64_t piece_bytes);
void bench_close(struct bench *b);
void *memory(struct bench *b, uint64_t bytes);

/* ---- mpi_failing_cases.c ---- */

void case_missing(void);
void case_killed(void);
void case_killed_unwatched(void);
void case_abort(void);
void case_disagree(void);
void case_open(void);
/* Exit code: haul refuses an MPI that offers less than MPI_THREAD_MULTIPLE. */
int thread_level(int *argc, char ***argv);

#endif
