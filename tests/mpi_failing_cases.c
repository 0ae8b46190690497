/* mpi_failing_cases.c: what the ranks of test_comm_mpi do where something goes wrong. */
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include "mpi_cases.h"

/* ---- what goes wrong ---- */

/* The last rank does not come. The others say so, in about the time-out, and name it; what they queue
 * after it does nothing. */
void case_missing(void)
{
    struct bench b = bench_open(0.5, 0);
    unsigned char *full = memory(&b, 100 * (uint64_t)nranks);
    char words[64];
    double begin = MPI_Wtime();

    if (rank == nranks - 1) {
        sleep(3);
        haul_device_free(b.dev, full);
        bench_close(&b);
        return;
    }
    snprintf(words, sizeof words, "no answer from rank %d of 0 to %d", nranks - 1, nranks - 1);
    for (int i = 0; i < 3; i++)
        MUST(b.comm->ops->all_gather(b.comm, full, full + 100 * rank, 100, b.stream));
    MUST(haul_device_stream_sync(b.dev, b.stream));
    CHECK(MPI_Wtime() - begin >= 0.5, "too early");
    CHECK(b.comm->ops->check(b.comm) == HAUL_E_MPI, "no error");
    error_says(words);
    error_says("all-gather of 100 bytes a rank, call 1");
    CHECK(b.comm->ops->all_gather(b.comm, full, full, 100, b.stream) == 0, "does nothing");
    CHECK(b.comm->ops->check(b.comm) == HAUL_E_MPI, "still");
    error_says(words);
    CHECK(b.comm->ops->barrier(b.comm) == HAUL_E_MPI, "no error of a blocking call");
    error_says(words);
    haul_device_free(b.dev, full);
    bench_close(&b);
}

/* A rank dies in the middle of the work. Who survives says so with a file, since mpirun counts the dead. */
static void die_and_look(double timeout_s, double most_s, const char *says)
{
    struct bench b = bench_open(timeout_s, 1000);
    unsigned char *full = memory(&b, 100000 * (uint64_t)nranks);
    const char *folder = getenv("MPI_CASES_FOLDER");
    char file[4096];
    double begin = MPI_Wtime();
    int rc = 0, dead = nranks / 2;

    for (int i = 0; rc == 0 && MPI_Wtime() - begin < 30; i++) {
        uint64_t word = 1;

        MUST(b.comm->ops->all_gather(b.comm, full, full + 100000 * rank, 100000, b.stream));
        if (i == 20 && rank == dead)
            raise(SIGKILL);
        rc = b.comm->ops->all_reduce(b.comm, HAUL_COMM_SUM_U64, &word, 1);
    }
    CHECK(rc == HAUL_E_MPI, "%d", rc);
    error_says(says);
    MUST(haul_device_stream_sync(b.dev, b.stream));
    CHECK(b.comm->ops->check(b.comm) == HAUL_E_MPI, "no error of the queued call");
    CHECK(MPI_Wtime() - begin < most_s, "took %g s", MPI_Wtime() - begin);
    haul_device_free(b.dev, full);
    bench_close(&b);
    snprintf(file, sizeof file, "%s/%d", folder ? folder : ".", rank);
    if (!wrong)
        fclose(fopen(file, "w"));
    _exit(0);
}

void case_killed(void)
{
    char says[64];

    snprintf(says, sizeof says, "rank %d of 0 to %d, on this node, has ended", nranks / 2,
             nranks - 1);
    die_and_look(60, 15, says);
}

/* As with a rank of another node: the kernel tells nothing. */
void case_killed_unwatched(void)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_pidfd_open, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog refuse = {sizeof code / sizeof *code, code};
    char says[64];

    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
              prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &refuse) == 0,
          "no filter");
    snprintf(says, sizeof says, "rank %d", nranks / 2);
    die_and_look(1.5, 15, says);
}

/* One gives up: the others learn of it long before their time-out. */
void case_abort(void)
{
    struct bench b = bench_open(60, 0);
    unsigned char *full = memory(&b, 100 * (uint64_t)nranks);
    uint64_t word = 1;
    double begin = MPI_Wtime();

    if (rank == 1) {
        MUST(b.comm->ops->all_gather(b.comm, full, full + 100, 100, b.stream));
        usleep(100000);
        b.comm->ops->abort(b.comm);
        b.comm->ops->abort(b.comm);
    } else if (rank == 0) {
        CHECK(b.comm->ops->all_reduce(b.comm, HAUL_COMM_SUM_U64, &word, 1) == HAUL_E_MPI,
              "no error");
        error_says("rank 1 has given up");
        CHECK(word == 1, "written although it failed");
        MUST(b.comm->ops->all_gather(b.comm, full, full, 100, b.stream));
    } else
        MUST(b.comm->ops->all_gather(b.comm, full, full + 100 * rank, 100, b.stream));
    MUST(haul_device_stream_sync(b.dev, b.stream));
    CHECK(b.comm->ops->check(b.comm) == HAUL_E_MPI, "no error");
    error_says(rank == 1 ? "this one, has given up" : "rank 1 has given up");
    CHECK(b.comm->ops->barrier(b.comm) == HAUL_E_MPI, "blocking calls go on");
    CHECK(MPI_Wtime() - begin < 30, "took %g s", MPI_Wtime() - begin);
    haul_device_free(b.dev, full);
    bench_close(&b);
}

/* The same call with another size, or another call. */
void case_disagree(void)
{
    struct bench b = bench_open(1.0, 0);
    unsigned char *full = memory(&b, 200 * (uint64_t)nranks);
    uint64_t bytes = rank == 0 ? 96 : 100;

    MUST(b.comm->ops->all_gather(b.comm, full, full + bytes * (uint64_t)rank, bytes, b.stream));
    MUST(haul_device_stream_sync(b.dev, b.stream));
    CHECK(b.comm->ops->check(b.comm) == HAUL_E_MPI, "no error");
    haul_device_free(b.dev, full);
    bench_close(&b);
}

void case_open(void)
{
    struct haul_comm_mpi_opts opts = opts_of(5, 0);
    struct haul_device *dev = device();
    struct haul_comm *comm = NULL;
    MPI_Comm half;

    CHECK(haul_comm_mpi_open(NULL, NULL, &comm) == -EINVAL, "no device");
    CHECK(haul_comm_mpi_open(NULL, dev, NULL) == -EINVAL, "no output");
    opts.struct_size--;
    CHECK(haul_comm_mpi_open(&opts, dev, &comm) == HAUL_E_ABI, "another struct");
    opts = opts_of(0, 0);
    CHECK(haul_comm_mpi_open(&opts, dev, &comm) == -EINVAL, "no time");
    opts = opts_of(5, (UINT64_C(1) << 30) + 1);
    CHECK(haul_comm_mpi_open(&opts, dev, &comm) == -EINVAL, "pieces too long");
    opts = opts_of(5, 0);
    opts.comm = MPI_COMM_NULL;
    CHECK(haul_comm_mpi_open(&opts, dev, &comm) == -EINVAL, "no ranks");
    opts = opts_of(20, 0);
    opts.stage_bytes = rank == 0 ? 0 : opts.stage_bytes;
    CHECK(haul_comm_mpi_open(&opts, dev, &comm) == (rank == 0 ? -EINVAL : HAUL_E_MPI),
          "one fails, all fail");
    error_says(rank == 0 ? "stage_bytes" : "another rank could not open");
    CHECK(comm == NULL, "written although it failed");

    /* Some of the ranks, and twice on the same ones. */
    if (MPI_Comm_split(MPI_COMM_WORLD, rank % 2, -rank, &half))
        _exit(1);
    opts = opts_of(20, 0);
    opts.comm = half;
    for (int i = 0; i < 2; i++) {
        MUST(haul_comm_mpi_open(&opts, dev, &comm));
        CHECK(comm->nranks == (uint32_t)(nranks + (rank % 2 == 0)) / 2, "half of them");
        MUST(comm->ops->barrier(comm));
        haul_comm_close(comm);
        comm = NULL;
    }
    MPI_Comm_free(&half);
    MUST(haul_device_close(dev));
}

/* ---- MPI that offers too little ---- */

static int refused(int rc, const char *words)
{
    struct haul_device *dev = device();
    struct haul_comm *comm = NULL;

    CHECK(haul_comm_mpi_open(NULL, dev, &comm) == rc, "not refused");
    error_says(words);
    MUST(haul_device_close(dev));
    return wrong != 0;
}

int thread_level(int *argc, char ***argv)
{
    int level;

    (void)refused(HAUL_E_STATE, "not initialised");
    MPI_Init_thread(argc, argv, MPI_THREAD_FUNNELED, &level);
    (void)refused(HAUL_E_MPI, "MPI runs with MPI_THREAD_FUNNELED, haul needs MPI_THREAD_MULTIPLE");
    MPI_Finalize();
    return refused(HAUL_E_STATE, "finalised");
}
