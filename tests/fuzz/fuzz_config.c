/* fuzz_config.c: a configuration, whatever bytes it has.
 *
 * Input: 1 byte of options (bit 0: strict, bits 1 to 3: ranks); the file. What is accepted must be what an
 * engine takes, and must mean the same when it is given once more as flags. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fail.h"
#include "haul/config.h"
#include "sys.h"

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void ignore(void *user, enum haul_log_level level, const char *text)
{
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    haul_log_set(ignore, NULL, HAUL_LOG_WARN);
    return 0;
}

static void must(int condition)
{
    if (!condition)
        abort();
}

static void check_values(const struct haul_config_values *v)
{
    must(v->stage <= 3 && v->slots >= 2 && v->slots <= 1024 && v->max_held >= 1 && v->passes >= 1);
    must(v->window == 0 || v->window >= v->max_held);
    must(v->optim.beta1 >= 0 && v->optim.beta1 < 1 && v->optim.beta2 >= 0 && v->optim.beta2 < 1);
    must(v->optim.eps >= 0 && v->lr >= 0 && v->weight_decay >= 0 && v->clip_norm >= 0);
    must(v->dtype == HAUL_BF16 || v->dtype == HAUL_FP16 || v->dtype == HAUL_FP32);
    must(v->master == HAUL_MASTER_FP32 || v->dtype == HAUL_BF16);
    must(v->nnvme_dirs <= HAUL_MAX_DIRS);
}

static void check_texts(const struct haul_config *config, const struct haul_config_opts *opts)
{
    struct haul_config_setting a = {.struct_size = sizeof a}, b = a;
    uint32_t n = haul_config_count(config);
    const char *flags[64];
    struct haul_config_opts again = *opts;
    struct haul_config *other;

    for (uint32_t i = 0; i < n; i++) {
        char *flag;

        must(haul_config_get_setting(config, i, &a) == 0);
        must(asprintf(&flag, "%s=%s", a.key, *a.value ? a.value : "auto") > 0);
        flags[i] = flag;
    }
    again.flags = flags;
    again.nflags = n;
    must(haul_config_load(NULL, &again, &other) == 0);
    for (uint32_t i = 0; i < n; i++) {
        must(haul_config_get_setting(config, i, &a) == 0);
        must(haul_config_get_setting(other, i, &b) == 0);
        must(strcmp(a.value, b.value) == 0);
        free((void *)(uintptr_t)flags[i]);
    }
    haul_config_close(other);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct haul_config_opts opts;
    struct haul_config *config;
    int rc;

    if (size < 1)
        return 0;
    haul_config_opts_init(&opts);
    opts.strict = data[0] & 1;
    opts.ranks = data[0] >> 1 & 7;
    opts.no_environment = 1;
    rc = haul_config_parse("fuzz", (const char *)data + 1, size - 1, &opts, &config);
    must(rc == 0 || (rc == HAUL_E_CONFIG && haul_last_error()[0] != '\0'));
    if (rc == 0) {
        struct haul_engine_opts engine;
        struct haul_step step = {.struct_size = sizeof step};

        haul_engine_opts_init(&engine);
        check_values(haul_config_values(config));
        check_texts(config, &opts);
        must(haul_config_apply(config, &engine, &step) == 0);
        haul_config_close(config);
    }
    must(hl_sys_live(HL_SYS_MEM) == 0);
    return 0;
}
