/*
 * The communicator over MPI. A case starts tests/mpi_cases.c under mpirun and looks at how it ended: MPI and
 * Criterion do not meet in one process.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "suite.h"

/* The build gives the path. */
#ifndef MPI_CASES
#define MPI_CASES "mpi_cases"
#endif

/* Ranks on fewer cores, in a container, as root, without a shell on other machines. */
static void child(const char *nranks, const char *name, const char *flag)
{
    setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
    setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
    setenv("OMPI_MCA_btl_vader_single_copy_mechanism", "none", 1);
    setenv("OMPI_MCA_plm_rsh_agent", "false", 1);
    setenv("OMPI_MCA_rmaps_base_oversubscribe", "1", 1);
    setenv("OMPI_MCA_hwloc_base_binding_policy", "none", 1);
    /* What MPI itself keeps until the end is not haul's. */
    setenv("ASAN_OPTIONS", "detect_leaks=0", 1);
    dup2(STDERR_FILENO, STDOUT_FILENO);
    execlp("mpirun", "mpirun", flag, "-n", nranks, MPI_CASES, name, (char *)NULL);
    _exit(127);
}

/* The exit code; 124 when it had to be ended. */
static int ended(pid_t pid, unsigned most_s)
{
    int status = 0;

    for (unsigned ms = 0; waitpid(pid, &status, WNOHANG) == 0; ms += 10) {
        if (ms > most_s * 1000) {
            kill(pid, SIGTERM);
            waitpid(pid, &status, 0);
            return 124;
        }
        usleep(10000);
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static int have_mpirun(void)
{
    const char *path = getenv("PATH");
    char file[4096];

    for (size_t n; path && *path; path += n + (path[n] == ':')) {
        n = strcspn(path, ":");
        snprintf(file, sizeof file, "%.*s/mpirun", (int)n, path);
        if (access(file, X_OK) == 0)
            return 1;
    }
    return 0;
}

/* The exit code of mpirun. */
static int run(int nranks, const char *name, const char *flag)
{
    char n[16];
    pid_t pid;

    if (!have_mpirun())
        SKIP("mpirun is missing (packages.txt: openmpi-bin)");
    snprintf(n, sizeof n, "%d", nranks);
    fflush(NULL);
    pid = fork();
    cr_assert_neq(pid, -1);
    if (pid == 0)
        child(n, name, flag);
    return ended(pid, 120);
}

static void ranks(int nranks, const char *name)
{
    int code = run(nranks, name, "--quiet");

    cr_assert_eq(code, 0, "%s with %d ranks ended with %d", name, nranks, code);
}

Test(comm_mpi, one_rank_has_only_itself)
{
    ranks(1, "moves");
    ranks(1, "scalars");
    ranks(1, "reduce");
}

Test(comm_mpi, two_ranks_gather_scatter_and_broadcast_every_size)
{
    ranks(2, "moves");
}

Test(comm_mpi, three_ranks_gather_scatter_and_broadcast_every_size)
{
    ranks(3, "moves");
}

Test(comm_mpi, four_ranks_gather_scatter_and_broadcast_every_size)
{
    ranks(4, "moves");
}

Test(comm_mpi, large_pieces_arrive)
{
    ranks(2, "large");
    ranks(4, "large");
}

Test(comm_mpi, a_gpus_memory_moves_through_pinned_host_memory)
{
#ifdef WITH_CUDA
    ranks(2, "gpu");
    ranks(4, "gpu");
    ranks(2, "mixed");
#else
    SKIP("built without CUDA");
#endif
}

Test(comm_mpi, of_different_message_limits_the_least_counts)
{
    ranks(3, "pieces_differ");
}

Test(comm_mpi, thousands_of_calls_go_through_a_bounded_queue)
{
    ranks(4, "many");
}

Test(comm_mpi, calls_on_two_streams_run_in_the_order_they_were_queued_in)
{
    ranks(3, "streams");
}

Test(comm_mpi, scalars_are_combined_in_rank_order)
{
    ranks(2, "scalars");
    ranks(4, "scalars");
}

Test(comm_mpi, scalars_of_one_thread_pass_collectives_of_another)
{
    ranks(4, "two_threads");
}

Test(comm_mpi, the_sum_over_ranks_has_the_bits_of_a_loop_in_rank_order)
{
    ranks(2, "reduce");
    ranks(3, "reduce");
    ranks(4, "reduce");
}

Test(comm_mpi, a_rank_that_does_not_come_is_named_by_all_others)
{
    ranks(2, "missing");
    ranks(4, "missing");
}

/* Rank 2 of 4 dies in `name`. mpirun itself would end the others; --enable-recovery lets them be. */
static void of_the_killed(const char *name)
{
    char folder[] = "/tmp/haul-mpi-XXXXXX", file[64];

    cr_assert_not_null(mkdtemp(folder));
    setenv("MPI_CASES_FOLDER", folder, 1);
    (void)run(4, name, "--enable-recovery");
    for (int r = 0; r < 4; r++) {
        snprintf(file, sizeof file, "%s/%d", folder, r);
        cr_assert_eq(unlink(file), r == 2 ? -1 : 0, "rank %d", r);
    }
    cr_assert_eq(rmdir(folder), 0);
}

Test(comm_mpi, of_a_rank_that_is_killed_on_this_node_the_others_hear_long_before_the_time_out)
{
    int fd = (int)syscall(SYS_pidfd_open, getpid(), 0U);

    if (fd < 0)
        SKIP("the kernel gives no pidfd: %s", strerror(errno));
    close(fd);
    of_the_killed("killed");
}

Test(comm_mpi, of_a_rank_that_nobody_watches_the_others_get_an_error_within_the_time_out)
{
    of_the_killed("killed_unwatched");
}

Test(comm_mpi, when_one_rank_gives_up_the_others_learn_of_it_at_once)
{
    ranks(4, "abort");
}

Test(comm_mpi, ranks_that_disagree_about_a_size_get_an_error)
{
    ranks(2, "disagree");
}

Test(comm_mpi, opening_refuses_what_it_must_and_takes_part_of_the_ranks)
{
    ranks(4, "open");
}

Test(comm_mpi, opening_alone_ends_with_the_time_out)
{
    ranks(2, "alone");
}

Test(comm_mpi, waiting_ranks_leave_the_cores_to_others)
{
    ranks(4, "waiting_is_cheap");
}

Test(comm_mpi, less_than_thread_multiple_is_refused_by_name)
{
    ranks(1, "thread_level");
    ranks(2, "thread_level");
}
