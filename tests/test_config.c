/* Configurations: ten forms as they are published, with the values that their keys mean; sources in their
 * order; everything that must be refused. */
#include <errno.h>
#include <stdbool.h>

#include "haul/config.h"
#include "suite.h"
#include "sys.h"

#define CONFIGS HAUL_TEST_SOURCES "/configs/"

/* Warnings of the library are looked at, not shown. */
static char warned[1024];

static void take_warning(void *user, enum haul_log_level level, const char *text)
{
    (void)user;
    (void)level;
    snprintf(warned, sizeof warned, "%s", text);
}

static struct haul_config_opts quiet(void)
{
    struct haul_config_opts opts;

    haul_config_opts_init(&opts);
    opts.no_environment = 1;
    warned[0] = '\0';
    haul_log_set(take_warning, NULL, HAUL_LOG_WARN);
    return opts;
}

static struct haul_config *loaded(const char *path, uint32_t ranks)
{
    struct haul_config_opts opts = quiet();
    struct haul_config *config = NULL;

    opts.ranks = ranks;
    cr_assert_eq(haul_config_load(path, &opts, &config), 0, "%s", haul_last_error());
    return config;
}

static struct haul_config_setting setting(const struct haul_config *config, const char *key)
{
    struct haul_config_setting s = {.struct_size = sizeof s};

    for (uint32_t i = 0; i < haul_config_count(config); i++) {
        cr_assert_eq(haul_config_get_setting(config, i, &s), 0);
        if (strcmp(s.key, key) == 0)
            return s;
    }
    cr_assert(0, "no setting %s", key);
    return s;
}

struct want {
    const char *key, *value, *where; /* where NULL: a default */
};

static void check(const struct haul_config *config, const struct want *want)
{
    for (; want->key; want++) {
        struct haul_config_setting s = setting(config, want->key);

        cr_assert_str_eq(s.value, want->value, "%s is %s", s.key, s.value);
        cr_assert_eq(s.source, want->where ? HAUL_CONFIG_FILE : HAUL_CONFIG_DEFAULT, "%s", s.key);
        if (want->where)
            cr_assert_str_eq(s.where, want->where, "%s comes from %s", s.key, s.where);
    }
}

static bool noted(const struct haul_config *config, const char *words)
{
    const char *note;

    for (uint32_t i = 0; (note = haul_config_note(config, i)); i++)
        if (strstr(note, words))
            return true;
    return false;
}

static void check_file(const char *path, uint32_t ranks, const struct want *want)
{
    struct haul_config *config = loaded(path, ranks);

    check(config, want);
    cr_assert_str_eq(warned, "", "%s", warned);
    haul_config_close(config);
}

/* ---- published forms ---- */

#define ADAM "optimizer.params."
#define ZERO "zero_optimization."

Test(config, stage_1_in_fp32_with_l2_adam)
{
    check_file(CONFIGS "zero1_fp32.json", 0,
               (const struct want[]){{"stage", "1", ZERO "stage"},
                                     {"offload", "none", NULL},
                                     {"dtype", "fp32", NULL},
                                     {"grad_dtype", "fp32", NULL},
                                     {"optimizer", "adam", "optimizer.type"},
                                     {"lr", "0.00015", ADAM "lr"},
                                     {"beta1", "0.8", ADAM "betas"},
                                     {"beta2", "0.95", ADAM "betas"},
                                     {"eps", "1e-07", ADAM "eps"},
                                     {"weight_decay", "0", NULL},
                                     {"clip_norm", "1", "gradient_clipping"},
                                     {"train_batch", "32", "train_batch_size"},
                                     {0}});
}

Test(config, stage_2_with_auto_values_leaves_them_to_the_trainer)
{
    struct haul_config *config = loaded(CONFIGS "zero2_offload_auto.json", 0);

    check(config, (const struct want[]){{"stage", "2", ZERO "stage"},
                                        {"offload", "optimizer", ZERO "offload_optimizer.device"},
                                        {"dtype", "bf16", NULL},
                                        {"optimizer", "adamw", "optimizer.type"},
                                        {"lr", "0.001", NULL},
                                        {"beta2", "0.999", NULL},
                                        {"clip_norm", "1", NULL},
                                        {"train_batch", "auto", NULL},
                                        {"accumulation", "auto", NULL},
                                        {0}});
    cr_assert(noted(config, "scheduler"));
    cr_assert(noted(config, ZERO "allgather_bucket_size"));
    cr_assert_str_eq(setting(config, "lr").where, ADAM "lr is \"auto\"");
    haul_config_close(config);
}

Test(config, stage_3_in_bf16_with_everything_on_the_host)
{
    check_file(CONFIGS "zero3_offload_bf16.json", 4,
               (const struct want[]){{"stage", "3", ZERO "stage"},
                                     {"offload", "all", ZERO "offload_param.device"},
                                     {"dtype", "bf16", "bf16.enabled"},
                                     {"grad_dtype", "bf16", NULL},
                                     {"lr", "2e-05", ADAM "lr"},
                                     {"weight_decay", "0.1", ADAM "weight_decay"},
                                     {"beta2", "0.95", ADAM "betas"},
                                     {"micro_batch", "2", "train_micro_batch_size_per_gpu"},
                                     {"accumulation", "4", "gradient_accumulation_steps"},
                                     {"train_batch", "32", NULL},
                                     {"loss_scale", "0", NULL},
                                     {"nvme", "", NULL},
                                     {0}});
}

Test(config, infinity_on_one_drive_in_fp16)
{
    struct haul_config *config = loaded(CONFIGS "infinity_nvme.json", 2);

    check(config, (const struct want[]){{"offload", "all", ZERO "offload_param.device"},
                                        {"nvme", "/local_nvme", ZERO "offload_optimizer.nvme_path"},
                                        {"slots", "6", ZERO "offload_optimizer.buffer_count"},
                                        {"dtype", "fp16", "fp16.enabled"},
                                        {"grad_dtype", "fp16", NULL},
                                        {"loss_scale", "4096", "fp16.initial_scale_power"},
                                        {"loss_scale_window", "500", "fp16.loss_scale_window"},
                                        {"optimizer", "adamw", "optimizer.type"},
                                        {"weight_decay", "3e-07", ADAM "weight_decay"},
                                        {"accumulation", "8", NULL},
                                        {0}});
    cr_assert(noted(config, "host_mem"));
    cr_assert(noted(config, "aio.queue_depth"));
    haul_config_close(config);
}

Test(config, two_paths_are_two_directories)
{
    struct haul_config *config = loaded(CONFIGS "split_nvme_paths.json", 0);

    check(config, (const struct want[]){{"nvme", "/mnt/b,/mnt/a", ZERO "offload_param.nvme_path"},
                                        {"slots", "4", NULL},
                                        {"grad_dtype", "fp32", "communication_data_type"},
                                        {"optimizer", "adamw", NULL},
                                        {0}});
    cr_assert_eq(haul_config_values(config)->nnvme_dirs, 2);
    cr_assert(noted(config, ZERO "offload_optimizer.ratio"));
    haul_config_close(config);
}

Test(config, deprecated_offload_and_a_scale_past_the_last)
{
    struct haul_config *config = loaded(CONFIGS "deprecated_cpu_offload.json", 4);

    check(config, (const struct want[]){{"stage", "2", ZERO "stage"},
                                        {"offload", "optimizer", ZERO "cpu_offload"},
                                        {"loss_scale", "16777216", "fp16.initial_scale_power"},
                                        {"loss_scale_window", "1000", NULL},
                                        {"train_batch", "16", "train_batch_size"},
                                        {"micro_batch", "2", "train_micro_batch_size_per_gpu"},
                                        {0}});
    cr_assert(noted(config, "2^32"));
    cr_assert(noted(config, "fp16.hysteresis"));
    haul_config_close(config);
}

Test(config, sgd_with_a_fixed_scale_and_zero_as_a_switch)
{
    check_file(CONFIGS "static_scale_sgd.json", 0,
               (const struct want[]){{"stage", "0", "zero_optimization"},
                                     {"offload", "none", NULL},
                                     {"optimizer", "sgd", "optimizer.type"},
                                     {"momentum", "0.9", ADAM "momentum"},
                                     {"nesterov", "true", ADAM "nesterov"},
                                     {"weight_decay", "0.0001", ADAM "weight_decay"},
                                     {"loss_scale", "1024", "fp16.loss_scale"},
                                     {"loss_scale_window", "4294967295", "fp16.loss_scale"},
                                     {"clip_norm", "0.25", "gradient_clipping"},
                                     {0}});
}

Test(config, lion_beside_sections_for_other_programs)
{
    struct haul_config *config = loaded(CONFIGS "lion_monitored.json", 0);

    check(config, (const struct want[]){{"stage", "2", ZERO "stage"},
                                        {"offload", "none", NULL},
                                        {"dtype", "bf16", "bf16.enabled"},
                                        {"optimizer", "lion", "optimizer.type"},
                                        {"beta1", "0.95", ADAM "betas"},
                                        {"beta2", "0.98", ADAM "betas"},
                                        {"weight_decay", "1", ADAM "weight_decay"},
                                        {0}});
    cr_assert(noted(config, "flops_profiler"));
    cr_assert_str_eq(warned, "", "%s", warned);
    haul_config_close(config);
}

Test(config, hauls_own_keys_beside_the_others_count_before_them)
{
    check_file(CONFIGS "hand_written_stage3.json", 0,
               (const struct want[]){{"stage", "3", ZERO "stage"},
                                     {"offload", "all", "haul.offload"},
                                     {"master", "split", "haul.master"},
                                     {"device_mem", "24000000000", "haul.device_mem"},
                                     {"host_mem", "137438953472", "haul.host_mem"},
                                     {"nvme_mem", "1000000000000", "haul.nvme_mem"},
                                     {"nvme", "/mnt/nvme0,/mnt/nvme1", "haul.nvme"},
                                     {"window", "4", "haul.window"},
                                     {"max_held", "2", "haul.max_held"},
                                     {"slots", "8", "haul.slots"},
                                     {"slot_bytes", "16777216", "haul.slot_bytes"},
                                     {"threads", "12", "haul.threads"},
                                     {"overlap", "false", "haul.overlap"},
                                     {"io_method", "threads", "haul.io_method"},
                                     {"loss_scale_window", "100", "haul.loss_scale_window"},
                                     {0}});
}

Test(config, a_file_of_hauls_keys_alone_has_hauls_defaults)
{
    check_file(CONFIGS "only_haul.json", 0,
               (const struct want[]){{"stage", "3", NULL},
                                     {"offload", "all", NULL},
                                     {"optimizer", "adagrad", "haul.optimizer"},
                                     {"eps", "1e-09", "haul.eps"},
                                     {"lr", "0.01", "haul.lr"},
                                     {"host_mem", "unlimited", "haul.host_mem"},
                                     {"device_mem", "auto", NULL},
                                     {"dtype", "bf16", "haul.dtype"},
                                     {"grad_dtype", "fp32", "haul.grad_dtype"},
                                     {"clip_norm", "2.5", "haul.clip_norm"},
                                     {"accumulation", "3", "haul.accumulation"},
                                     {"passes", "3", "haul.passes"},
                                     {"overlap", "true", NULL},
                                     {0}});
}

/* ---- texts of one line ---- */

static int parse(const char *text, const struct haul_config_opts *opts, struct haul_config **out)
{
    return haul_config_parse("c.json", text, strlen(text), opts, out);
}

static void refuses(const char *text, const char *words)
{
    struct haul_config_opts opts = quiet();
    struct haul_config *config = (void *)&config;
    int64_t mem = hl_sys_live(HL_SYS_MEM);

    cr_assert_eq(parse(text, &opts, &config), HAUL_E_CONFIG, "%s was taken", text);
    cr_assert_not_null(strstr(haul_last_error(), words), "'%s' does not say '%s'",
                       haul_last_error(), words);
    cr_assert(config == (void *)&config, "written although refused");
    cr_assert_eq(hl_sys_live(HL_SYS_MEM), mem, "%s leaks", text);
}

Test(config, a_misspelled_key_names_its_neighbour)
{
    static const struct {
        const char *text, *words;
    } bad[] = {
        {"{\"zero_optimisation\":{\"stage\":2}}",
         "zero_optimisation is not a known key; did you mean zero_optimization?"},
        {"{\"zero_optimization\":{\"stge\":2}}",
         "zero_optimization.stge is not a known key; did you mean zero_optimization.stage?"},
        {"{\"zero_optimization\":{\"offload_optimizer\":{\"devcie\":\"cpu\"}}}",
         "did you mean zero_optimization.offload_optimizer.device?"},
        {"{\"gradient_cliping\":1}", "did you mean gradient_clipping?"},
        {"{\"optimizer\":{\"params\":{\"beta\":[0.9,0.99]}}}",
         "did you mean optimizer.params.betas?"},
        {"{\"pin_memory\":true}", "did you mean zero_optimization.offload_optimizer.pin_memory?"},
        {"{\"haul\":{\"hostmem\":\"1GB\"}}",
         "haul.hostmem is not a known key; did you mean host_mem?"},
        {"{\"hual\":{}}", "did you mean haul?"},
        {"{\"qqqqqqqqqqqqqqqqqqqq\":1}", "qqqqqqqqqqqqqqqqqqqq is not a known key"},
    };

    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct haul_config_opts opts = quiet();
        struct haul_config *config = NULL;

        cr_assert_eq(parse(bad[i].text, &opts, &config), 0, "%s", haul_last_error());
        cr_assert_not_null(strstr(warned, bad[i].words), "%s", warned);
        cr_assert_not_null(strstr(warned, "c.json: "), "%s", warned);
        cr_assert(noted(config, bad[i].words));
        haul_config_close(config);
        opts.strict = 1;
        cr_assert_eq(parse(bad[i].text, &opts, &config), HAUL_E_CONFIG);
        cr_assert_not_null(strstr(haul_last_error(), bad[i].words), "%s", haul_last_error());
    }
}

Test(config, strict_takes_every_published_form)
{
    static const char *const files[] = {"zero1_fp32",          "zero2_offload_auto",
                                        "zero3_offload_bf16",  "infinity_nvme",
                                        "split_nvme_paths",    "deprecated_cpu_offload",
                                        "static_scale_sgd",    "lion_monitored",
                                        "hand_written_stage3", "only_haul"};

    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        struct haul_config_opts opts = quiet();
        struct haul_config *config;
        char path[512];

        opts.strict = 1;
        snprintf(path, sizeof path, CONFIGS "%s.json", files[i]);
        cr_assert_eq(haul_config_load(path, &opts, &config), 0, "%s", haul_last_error());
        haul_config_close(config);
    }
}

Test(config, what_a_key_cannot_be_is_refused_with_its_path)
{
    static const struct {
        const char *text, *words;
    } bad[] = {
        {"", "not JSON"},
        {"[]", "no object"},
        {"{\"a\":1,\"a\":2}", "duplicate"},
        {"{\"zero_optimization\":3}", "c.json: zero_optimization is of the wrong type; an object"},
        {"{\"zero_optimization\":{\"stage\":4}}", "zero_optimization.stage is 4; 0 to 3"},
        {"{\"zero_optimization\":{\"stage\":1.5}}",
         "zero_optimization.stage is 1.5; a whole number"},
        {"{\"zero_optimization\":{\"stage\":\"3\"}}",
         "zero_optimization.stage is of the wrong type; a whole number"},
        {"{\"zero_optimization\":{\"overlap_comm\":1}}",
         "zero_optimization.overlap_comm is of the wrong type; true or false"},
        {"{\"zero_optimization\":{\"offload_optimizer\":{\"device\":\"gpu\"}}}",
         "offload_optimizer.device is \"gpu\"; none, cpu or nvme"},
        {"{\"zero_optimization\":{\"offload_param\":{\"device\":\"nvme\"}}}",
         "offload_param.device is nvme, but nvme_path"},
        {"{\"zero_optimization\":{\"offload_optimizer\":{\"ratio\":1.5}}}",
         "offload_optimizer.ratio is 1.5; 0 to 1"},
        {"{\"zero_optimization\":{\"offload_optimizer\":\"cpu\"}}",
         "offload_optimizer is of the wrong type"},
        {"{\"train_batch_size\":0}", "train_batch_size is 0"},
        {"{\"train_batch_size\":-8}", "train_batch_size is -8"},
        {"{\"gradient_clipping\":-1}", "gradient_clipping is -1"},
        {"{\"optimizer\":{\"type\":\"Lamb\"}}", "optimizer.type is \"Lamb\""},
        {"{\"optimizer\":{\"params\":{\"betas\":[0.9]}}}",
         "optimizer.params.betas is no list of two numbers"},
        {"{\"optimizer\":{\"params\":{\"betas\":[0.9,1]}}}",
         "optimizer.params.betas is 1; from 0 to below 1"},
        {"{\"optimizer\":{\"params\":{\"amsgrad\":true}}}", "optimizer.params.amsgrad is true"},
        {"{\"fp16\":{\"enabled\":true},\"bf16\":{\"enabled\":true}}",
         "fp16.enabled is true, and so is bf16.enabled"},
        {"{\"fp16\":{\"enabled\":true,\"loss_scale\":100}}", "fp16.loss_scale): a power of two"},
        {"{\"fp16\":{\"enabled\":true,\"initial_scale_power\":128}}",
         "fp16.initial_scale_power is 128"},
        {"{\"communication_data_type\":\"int8\"}", "communication_data_type is \"int8\"; one of"},
        {"{\"haul\":[]}", "haul is of the wrong type"},
        {"{\"haul\":{\"stage\":\"x\"}}", "haul.stage is \"x\"; a number"},
        {"{\"haul\":{\"host_mem\":\"lots\"}}", "haul.host_mem"},
        {"{\"haul\":{\"host_mem\":true}}", "haul.host_mem is of the wrong type; a size"},
        {"{\"haul\":{\"slots\":1}}", "haul.slots is 1; 2 to 1024"},
        {"{\"haul\":{\"slot_bytes\":\"1KB\"}}", "haul.slot_bytes is 1000 bytes"},
        {"{\"haul\":{\"overlap\":2}}", "haul.overlap is of the wrong type; true or false"},
        {"{\"haul\":{\"io_method\":\"aio\"}}",
         "haul.io_method is \"aio\"; one of auto, uring, threads"},
        {"{\"haul\":{\"nvme\":[1]}}", "haul.nvme has an entry that is no text"},
        {"{\"haul\":{\"nvme\":\"/a,,/b\"}}", "haul.nvme names no directory"},
        {"{\"haul\":{\"nvme\":\"1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17\"}}", "more than 16"},
        {"{\"haul\":{\"lr\":1e400}}", "not JSON"},
        {"{\"haul\":{\"window\":1,\"max_held\":2}}", "window (haul.window): below max_held"},
        {"{\"haul\":{\"master\":\"split\",\"dtype\":\"fp32\"}}",
         "master (haul.master): split needs dtype bf16"},
        {"{\"haul\":{\"dtype\":\"fp32\",\"grad_dtype\":\"bf16\"}}", "grad_dtype (haul.grad_dtype)"},
        {"{\"train_batch_size\":9,\"train_micro_batch_size_per_gpu\":2,\"gradient_accumulation_"
         "steps\":2}",
         "train_batch (train_batch_size)"},
        {"{\"haul\":{\"micro_batch\":9e15,\"accumulation\":9e15,\"train_batch\":8}}",
         "train_batch (haul.train_batch)"},
    };

    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        refuses(bad[i].text, bad[i].words);
}

Test(config, with_ranks_known_one_batch_size_gives_the_others)
{
    static const struct {
        const char *text, *train, *micro, *accumulation;
    } cases[] = {
        {"{\"train_batch_size\":32}", "32", "8", "1"},
        {"{\"train_micro_batch_size_per_gpu\":3}", "12", "3", "1"},
        {"{\"train_batch_size\":32,\"gradient_accumulation_steps\":2}", "32", "4", "2"},
        {"{\"gradient_accumulation_steps\":2}", "auto", "auto", "2"},
        {"{}", "auto", "auto", "auto"},
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct haul_config_opts opts = quiet();
        struct haul_config *config;

        opts.ranks = 4;
        cr_assert_eq(parse(cases[i].text, &opts, &config), 0, "%s", haul_last_error());
        cr_assert_str_eq(setting(config, "train_batch").value, cases[i].train, "%s", cases[i].text);
        cr_assert_str_eq(setting(config, "micro_batch").value, cases[i].micro, "%s", cases[i].text);
        cr_assert_str_eq(setting(config, "accumulation").value, cases[i].accumulation, "%s",
                         cases[i].text);
        haul_config_close(config);
    }
}

Test(config, batches_that_do_not_fit_the_ranks_are_refused)
{
    struct haul_config_opts opts = quiet();
    struct haul_config *config = NULL;

    opts.ranks = 3;
    cr_assert_eq(haul_config_load(CONFIGS "deprecated_cpu_offload.json", &opts, &config),
                 HAUL_E_CONFIG);
    cr_assert_not_null(strstr(haul_last_error(), "train_batch_size"), "%s", haul_last_error());
    opts.ranks = 5;
    cr_assert_eq(haul_config_load(CONFIGS "infinity_nvme.json", &opts, &config), HAUL_E_CONFIG);
    cr_assert_null(config);
}

/* ---- sources ---- */

Test(config, a_flag_counts_before_the_environment_before_the_file)
{
    static const char *const flags[] = {"slots=9", "optimizer=lion", "nvme=/x,/y"};
    struct haul_config_opts opts = quiet();
    struct haul_config *config;

    setenv("HAUL_SLOTS", "7", 1);
    setenv("HAUL_HOST_MEM", "1GiB", 1);
    setenv("HAUL_OVERLAP", "on", 1);
    opts.no_environment = 0;
    opts.flags = flags;
    opts.nflags = 3;
    cr_assert_eq(haul_config_load(CONFIGS "hand_written_stage3.json", &opts, &config), 0, "%s",
                 haul_last_error());
    cr_assert_str_eq(setting(config, "slots").value, "9");
    cr_assert_eq(setting(config, "slots").source, HAUL_CONFIG_FLAG);
    cr_assert_str_eq(setting(config, "host_mem").value, "1073741824");
    cr_assert_eq(setting(config, "host_mem").source, HAUL_CONFIG_ENVIRONMENT);
    cr_assert_str_eq(setting(config, "host_mem").where, "HAUL_HOST_MEM");
    cr_assert_str_eq(setting(config, "overlap").value, "true");
    cr_assert_str_eq(setting(config, "threads").value, "12");
    cr_assert_str_eq(setting(config, "nvme").value, "/x,/y");
    cr_assert_str_eq(setting(config, "beta2").value, "0.99", "Lion's own default");
    haul_config_close(config);
    opts.no_environment = 1;
    cr_assert_eq(haul_config_load(NULL, &opts, &config), 0, "%s", haul_last_error());
    cr_assert_str_eq(setting(config, "host_mem").value, "auto");
    haul_config_close(config);
    setenv("HAUL_SLOTS", "many", 1);
    opts.no_environment = 0;
    cr_assert_eq(haul_config_load(NULL, &opts, &config), HAUL_E_CONFIG);
    cr_assert_not_null(strstr(haul_last_error(), "HAUL_SLOTS"), "%s", haul_last_error());
    unsetenv("HAUL_SLOTS");
    unsetenv("HAUL_HOST_MEM");
    unsetenv("HAUL_OVERLAP");
}

Test(config, flags_that_cannot_be_are_refused)
{
    static const struct {
        const char *flag, *words;
    } bad[] = {{"stagge=1", "stagge is not a known key; did you mean stage?"},
               {"stage", "stage has no value"},
               {"stage=", "stage is \"\""},
               {"stage=9", "stage is 9; 0 to 3"},
               {"=", "is not a known key"}};

    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct haul_config_opts opts = quiet();
        struct haul_config *config = NULL;

        opts.flags = &bad[i].flag;
        opts.nflags = 1;
        cr_assert_eq(haul_config_load(NULL, &opts, &config), HAUL_E_CONFIG, "%s", bad[i].flag);
        cr_assert_not_null(strstr(haul_last_error(), bad[i].words), "%s", haul_last_error());
    }
}

Test(config, apply_sets_an_engines_options_and_a_step)
{
    struct haul_config *config = loaded(CONFIGS "hand_written_stage3.json", 0);
    struct haul_step step = {.struct_size = sizeof step, .grad_scale = 0.5};
    struct haul_engine_opts opts;

    haul_engine_opts_init(&opts);
    opts.ngroups = 2;
    opts.stash_entries = 5;
    cr_assert_eq(haul_config_apply(config, &opts, &step), 0);
    cr_assert(opts.stage == 3 && opts.offload == HAUL_OFFLOAD_ALL &&
              opts.master == HAUL_MASTER_SPLIT);
    cr_assert(opts.device_mem_bytes == 24000000000 && opts.host_mem_bytes == 128ull << 30);
    cr_assert(opts.nnvme_dirs == 2 && !strcmp(opts.nvme_dirs[1], "/mnt/nvme1"));
    cr_assert(opts.window == 4 && opts.max_held == 2 && opts.slots == 8 &&
              opts.slot_bytes == 16 << 20);
    cr_assert(opts.nthreads == 12 && opts.overlap == 0 && opts.io_method == HAUL_IO_THREADS);
    cr_assert(opts.ngroups == 2 && opts.stash_entries == 5, "what a configuration does not have");
    cr_assert(step.lr == 1e-3 && step.weight_decay == 0 && step.clip_norm == 1 &&
              step.grad_scale == 0.5);
    opts.struct_size = 8;
    cr_assert_eq(haul_config_apply(config, &opts, NULL), HAUL_E_ABI);
    cr_assert_eq(haul_config_apply(config, NULL, NULL), 0);
    haul_config_close(config);
    haul_config_close(NULL);
}

Test(config, every_value_shown_can_be_given_as_a_flag)
{
    struct haul_config_opts opts = quiet();
    struct haul_config *config = loaded(CONFIGS "hand_written_stage3.json", 0), *again;
    static char text[64][128];
    const char *flags[64];
    uint32_t n = haul_config_count(config);
    struct haul_config_setting a = {.struct_size = sizeof a}, b = a;

    for (uint32_t i = 0; i < n; i++) {
        cr_assert_eq(haul_config_get_setting(config, i, &a), 0);
        snprintf(text[i], sizeof text[i], "%s=%s", a.key, a.value);
        flags[i] = text[i];
    }
    opts.flags = flags;
    opts.nflags = n;
    cr_assert_eq(haul_config_load(NULL, &opts, &again), 0, "%s", haul_last_error());
    for (uint32_t i = 0; i < n; i++) {
        cr_assert_eq(haul_config_get_setting(config, i, &a), 0);
        cr_assert_eq(haul_config_get_setting(again, i, &b), 0);
        cr_assert_str_eq(a.value, b.value, "%s", a.key);
    }
    cr_assert_eq(haul_config_get_setting(config, n, &a), -EINVAL);
    haul_config_close(again);
    haul_config_close(config);
}

Test(config, load_unwinds_from_every_failure)
{
    struct haul_config_opts opts = quiet();
    struct haul_config *config = NULL;
    int64_t mem = hl_sys_live(HL_SYS_MEM), fd = hl_sys_live(HL_SYS_FD);
    int rc = -1, n = 1;

    for (; rc < 0; n++) {
        config = NULL;
        hl_sys_fail_nth(n, ENOMEM);
        rc = haul_config_load(CONFIGS "hand_written_stage3.json", &opts, &config);
        hl_sys_fail_nth(0, 0);
        cr_assert(rc == 0 || (rc == -ENOMEM && config == NULL), "call %d: %d", n, rc);
        cr_assert(rc == 0 || hl_sys_live(HL_SYS_MEM) == mem, "call %d leaks memory", n);
        cr_assert(rc == 0 || hl_sys_live(HL_SYS_FD) == fd, "call %d leaks a descriptor", n);
    }
    cr_assert_gt(n, 8);
    haul_config_close(config);
    cr_assert_eq(hl_sys_live(HL_SYS_MEM), mem);
}
