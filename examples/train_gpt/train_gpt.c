/*
 * train_gpt.c: train a GPT on the bytes of any file, its state carried by haul.
 *
 * An ordinary user of the library: only haul's public headers. Ctrl-C, or SIGTERM, finishes the step on all
 * ranks, saves and prints the closing table; a second Ctrl-C ends at once.
 */
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "chrome_trace.h"
#include "compute.h"
#include "data.h"
#include "offload_rows.h"
#include "progress.h"
#include "saves.h"

static volatile sig_atomic_t interrupted;

static void on_interrupt(int sig)
{
    interrupted = 1;
}

/* For SIGINT the handler serves once: a second Ctrl-C has its usual effect. */
static void catch_signals(void)
{
    struct sigaction once = {.sa_handler = on_interrupt, .sa_flags = (int)SA_RESETHAND};
    struct sigaction always = {.sa_handler = on_interrupt, .sa_flags = SA_RESTART};

    sigaction(SIGINT, &once, NULL);
    sigaction(SIGTERM, &always, NULL);
}

static int failed(const struct trainer *t)
{
    trainer_complain(t, 0);
    return EXIT_FAILED;
}

static int train(const struct args *args, const struct data *data, struct trainer *t,
                 struct progress *progress, struct chrome_trace *trace)
{
    double loss;

    for (uint64_t step = t->nsteps + 1; step <= args->steps; step++) {
        struct haul_report report = {.struct_size = sizeof report};
        struct data_part part = {t->seed, step, args->rank * args->batch, args->batch, args->seq};

        if (data_read_step(data, &part, t->tokens) < 0)
            return EXIT_FAILED;
        if (trainer_step(t, step, interrupted, &loss, &report) < 0)
            return failed(t);
        if (progress_step(progress, t, step, loss, &report) != EXIT_OK)
            return EXIT_FAILED;
        if (chrome_trace_step(trace, t) < 0)
            return failed(t);
        if (saves_step(t, step, report.stop || step == args->steps) != EXIT_OK)
            return EXIT_FAILED;
        if (report.stop)
            break;
    }
    return EXIT_OK;
}

/* Reading the state for the digest is no part of the trace. */
static int close_run(const struct args *args, struct trainer *t, struct progress *progress,
                     struct chrome_trace *trace)
{
    uint64_t digest = 0;
    int rc;

    if (haul_engine_sync(t->engine) < 0 || chrome_trace_step(trace, t) < 0)
        return failed(t);
    if (args->with_digest && haul_engine_digest(t->engine, &digest) < 0)
        return failed(t);
    if (args->export != NULL && weights_write(t, args->export) < 0)
        return failed(t);
    rc = progress_end(progress, t, digest);
    if (rc == EXIT_OK && args->digest && args->rank == 0)
        printf("digest %016" PRIx64 "\n", digest);
    return rc;
}

static int run_opened(const struct args *args, const struct data *data, struct trainer *t)
{
    struct progress progress;
    struct chrome_trace trace;
    int rc;

    if (args->plan_only)
        return progress_plan(t);
    rc = progress_open(args, &progress);
    if (rc != EXIT_OK)
        return rc;
    rc = chrome_trace_open(args->trace, &trace);
    if (rc == EXIT_OK) {
        catch_signals();
        rc = train(args, data, t, &progress, &trace);
    }
    if (rc == EXIT_OK)
        rc = close_run(args, t, &progress, &trace);
    if (chrome_trace_close(&trace) != EXIT_OK && rc == EXIT_OK)
        rc = EXIT_FAILED;
    progress_close(&progress);
    return rc;
}

static int run_one(const struct args *args, const struct data *data, struct ranks *ranks)
{
    struct trainer trainer;
    int rc = trainer_open(args, ranks, &trainer);

    if (rc != EXIT_OK)
        return rc;
    rc = run_opened(args, data, &trainer);
    trainer_close(&trainer);
    return rc;
}

/* Found out now, not when there is something to lose. */
static int make_save_folder(const struct args *args)
{
    if (args->save == NULL || mkdir(args->save, 0777) == 0 || errno == EEXIST)
        return EXIT_OK;
    fprintf(stderr, "train_gpt: --save %s: %s; the folder above it must be there, and writable\n",
            args->save, strerror(errno));
    return EXIT_FAILED;
}

static int run_rank(const struct args *args, struct ranks *ranks)
{
    struct args mine;
    struct data data;
    int rc = ranks_share(ranks, args, &mine);

    if (rc == EXIT_OK)
        rc = make_save_folder(&mine);
    if (rc != EXIT_OK)
        return rc;
    if (data_open(mine.data, mine.seq, mine.vocab, &data) < 0)
        return EXIT_FAILED;
    rc = mine.bench ? offload_rows_run(&mine, &data, ranks) : run_one(&mine, &data, ranks);
    data_close(&data);
    return rc;
}

static int run(const struct args *args)
{
    struct ranks ranks;
    int rc = ranks_join(args, &ranks);

    if (rc != EXIT_OK)
        return rc;
    rc = run_rank(args, &ranks);
    ranks_leave(&ranks, rc == EXIT_OK);
    return rc;
}

/* Become the program beside this one that computes on the device asked for, with the same flags. */
static int start_other(char **argv)
{
    static const char *const names[] = {
        [DEVICE_HOST] = "train_gpt", [DEVICE_CUDA] = "train_gpt_cuda"};
    const char *name = names[compute_device == DEVICE_HOST ? DEVICE_CUDA : DEVICE_HOST];
    char path[4096];
    ssize_t n = readlink("/proc/self/exe", path, sizeof path - sizeof "train_gpt_cuda");
    char *slash;

    path[n < 0 ? 0 : n] = '\0';
    slash = strrchr(path, '/');
    strcpy(slash == NULL ? path : slash + 1, name);
    execv(path, argv);
    fprintf(
        stderr,
        "train_gpt: --device %s is served by %s, which cannot be started: %s; it is built where "
        "nvcc is, or use --device host (emulated)\n",
        compute_device == DEVICE_HOST ? "cuda" : "host", path, strerror(errno));
    return EXIT_ENVIRONMENT;
}

int main(int argc, char **argv)
{
    struct args args;
    int rc = args_parse(argc, argv, &args);

    if (rc != EXIT_OK)
        return rc;
    if (!args.help && args.device != compute_device)
        return start_other(argv);
    if (args.help)
        args_print_help();
    else
        rc = run(&args);
    haul_config_close(args.settings);
    if (fflush(stdout) != 0 && rc == EXIT_OK) {
        perror("train_gpt: stdout");
        rc = EXIT_FAILED;
    }
    return rc;
}
