/* ranks.c: see ranks.h. */
#include "ranks.h"

#include "haul/nccl.h"
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Set by the launchers of Open MPI, MPICH (PMI) and Slurm's PMI. */
static bool launched(void)
{
    return getenv("OMPI_COMM_WORLD_SIZE") != NULL || getenv("PMI_SIZE") != NULL ||
           getenv("PMIX_RANK") != NULL;
}

static int missing(const char *what)
{
    fprintf(stderr,
            "train_gpt: started by mpirun, but %s; build haul where Open MPI's development files "
            "are, or start one rank without mpirun\n",
            what);
    return EXIT_ENVIRONMENT;
}

static const struct ranks_module *module_of(const struct ranks *ranks)
{
    return dlsym(ranks->module, RANKS_SYMBOL);
}

static int open_module(struct ranks *ranks)
{
    char path[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", path, sizeof path - sizeof RANKS_MODULE);
    char *slash;

    path[n < 0 ? 0 : n] = '\0';
    slash = strrchr(path, '/');
    strcpy(slash == NULL ? path : slash + 1, RANKS_MODULE);
    ranks->module = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
    if (ranks->module == NULL)
        return missing(dlerror());
    return module_of(ranks) == NULL ? missing(dlerror()) : EXIT_OK;
}

static int read_timeout(double *out)
{
    const char *text = getenv("TRAIN_GPT_TIMEOUT_S");
    char *end;

    *out = 0;
    if (text == NULL)
        return EXIT_OK;
    *out = strtod(text, &end);
    if (end != text && *end == '\0' && isfinite(*out) && *out > 0)
        return EXIT_OK;
    fprintf(stderr,
            "train_gpt: TRAIN_GPT_TIMEOUT_S: takes a number of seconds above 0, not '%.60s'\n",
            text);
    return EXIT_USAGE;
}

int ranks_join(const struct args *args, struct ranks *out)
{
    struct ranks ranks = {.nranks = 1, .nlocal = 1};
    int rc = read_timeout(&ranks.timeout_s);

    if (rc != EXIT_OK)
        return rc;
    if (launched() && args->ranks != 0) {
        fprintf(stderr,
                "train_gpt: --ranks under mpirun, which says how many there are; leave one out\n");
        return EXIT_USAGE;
    }
    if (args->ranks > 1) {
        ranks.nranks = (uint32_t)args->ranks;
        ranks.nlocal = ranks.nranks < 8 ? ranks.nranks : 8;
    } else if (launched()) {
        rc = open_module(&ranks);
        if (rc != EXIT_OK)
            return rc;
        if (module_of(&ranks)->join(&ranks) < 0)
            return missing("its MPI has no MPI_THREAD_MULTIPLE");
    }
    *out = ranks;
    return EXIT_OK;
}

int ranks_share(const struct ranks *ranks, const struct args *args, struct args *mine)
{
    *mine = *args;
    mine->ranks = ranks->nranks;
    mine->rank = ranks->rank;
    mine->with_digest = args->digest || args->jsonl != NULL;
    if (args->batch % (args->accum * ranks->nranks) != 0) {
        if (ranks->rank == 0)
            fprintf(
                stderr, "train_gpt: --batch %llu is not divisible by --accum %llu times %u ranks\n",
                (unsigned long long)args->batch, (unsigned long long)args->accum, ranks->nranks);
        return EXIT_USAGE;
    }
    if (args->window != 0 && args->offload != HAUL_OFFLOAD_ALL &&
        (ranks->nranks == 1 || args->stage < 3)) {
        if (ranks->rank == 0)
            fprintf(stderr,
                    "train_gpt: --window needs --offload all, or --stage 3 with several ranks: "
                    "otherwise every unit stays on the device\n");
        return EXIT_USAGE;
    }
    mine->batch /= ranks->nranks;
    mine->host_mem_bytes /= ranks->nlocal;
    mine->nvme_mem_bytes /= ranks->nlocal;
    mine->stash_mem_bytes /= ranks->nlocal;
    if (ranks->rank != 0) {
        mine->quiet = true;
        mine->jsonl = mine->trace = NULL;
    }
    return EXIT_OK;
}

/* ---- ranks that are only planned for: they agree with each other ---- */

static int agree(struct haul_comm *comm, enum haul_comm_scalar op, void *values, uint64_t n)
{
    return 0;
}

static int no_barrier(struct haul_comm *comm)
{
    return 0;
}

static void close_planned(struct haul_comm *comm)
{
    free(comm);
}

static const struct haul_comm_ops planned_ops = {.struct_size = sizeof planned_ops,
                                                 .all_reduce = agree,
                                                 .barrier = no_barrier,
                                                 .close = close_planned};

static int plan_for(const struct ranks *ranks, struct haul_device *device, struct haul_comm **out)
{
    struct haul_comm *comm = malloc(sizeof *comm);

    if (comm == NULL)
        return -ENOMEM;
    *comm = (struct haul_comm){&planned_ops, device, 0, ranks->nranks, 0, ranks->nlocal};
    *out = comm;
    return 0;
}

/* Flags that say what the ranks do together. Others may differ: budgets, threads, what rank 0 writes. */
static int check_flags(const struct ranks *ranks, const struct args *args)
{
    const struct {
        const char *flag;
        double value;
    } flag[] = {
        {"--steps", (double)args->steps},
        {"--batch", (double)args->batch},
        {"--accum", (double)args->accum},
        {"--seq", (double)args->seq},
        {"--order", args->order},
        {"--seed", (double)args->seed},
        {"--lr", args->lr},
        {"--clip", args->clip},
        {"--no-recompute", args->no_recompute},
        {"--save", args->save != NULL},
        {"--save-every", (double)args->save_every},
        {"--resume", args->resume != NULL},
        {"--init", args->init != NULL},
        {"--digest or --jsonl", args->with_digest},
    };
    enum { N = sizeof flag / sizeof flag[0] };
    double most[2 * N];
    int rc;

    if (ranks->comm == NULL || args->plan_only)
        return 0;
    for (unsigned i = 0; i < N; i++) {
        most[i] = flag[i].value;
        most[N + i] = -flag[i].value;
    }
    rc = ranks->comm->ops->all_reduce(ranks->comm, HAUL_COMM_MAX_F64, most, 2 * N);
    for (unsigned i = 0; rc == 0 && i < N; i++)
        if (most[i] != -most[N + i])
            rc = haul_error_set(-EINVAL, "%s differs between the ranks; give all the same",
                                flag[i].flag);
    return rc;
}

static int open_comm(struct ranks *ranks, struct haul_device *device)
{
    struct haul_comm_nccl_opts opts;
    int rc;

    if (ranks->nranks == 1)
        return 0;
    if (ranks->module == NULL)
        return plan_for(ranks, device, &ranks->comm);
    rc = module_of(ranks)->connect(device, ranks->timeout_s, &ranks->comm);
    if (rc < 0 || haul_device_in_host_memory(device))
        return rc;
    /* GPUs reach each other through NCCL, which finds them over MPI */
    ranks->over = ranks->comm;
    ranks->comm = NULL;
    haul_comm_nccl_opts_init(&opts);
    opts.over = ranks->over;
    if (ranks->timeout_s > 0)
        opts.timeout_s = ranks->timeout_s;
    return haul_comm_nccl_open(&opts, device, &ranks->comm);
}

int ranks_connect(struct ranks *ranks, const struct args *args, struct haul_device *device)
{
    int rc = open_comm(ranks, device);

    return rc < 0 ? rc : check_flags(ranks, args);
}

int ranks_mean(const struct ranks *ranks, double *value)
{
    int rc = 0;

    if (ranks->comm != NULL)
        rc = ranks->comm->ops->all_reduce(ranks->comm, HAUL_COMM_SUM_F64, value, 1);
    *value /= ranks->nranks;
    return rc;
}

void ranks_disconnect(struct ranks *ranks)
{
    haul_comm_close(ranks->comm);
    haul_comm_close(ranks->over);
    ranks->comm = ranks->over = NULL;
}

void ranks_leave(struct ranks *ranks, bool ok)
{
    if (ranks->module != NULL && ok)
        module_of(ranks)->leave();
}
