/* Result codes, the last error, the log. */
#include <errno.h>
#include <pthread.h>
#include <unistd.h>

#include "fail.h"
#include "suite.h"

Test(base_fail, every_code_has_a_text)
{
    cr_assert_str_eq(haul_strerror(0), "success");
    cr_assert_str_eq(haul_strerror(-ENOENT), "No such file or directory");
    cr_assert_str_eq(haul_strerror(HAUL_E_SHORT_IO), "short read or write");
    cr_assert_str_eq(haul_strerror(HAUL_E_ABI),
                     "struct_size unknown to this version of the library");
    cr_assert_str_eq(haul_strerror(-4000), "unknown error -4000");
    cr_assert_str_eq(haul_strerror(-10999), "unknown error -10999");
    cr_assert_str_eq(haul_strerror(5), "unknown error 5");
    cr_assert_str_eq(haul_strerror(INT32_MIN), "unknown error -2147483648");
}

Test(base_fail, codes_keep_their_numbers)
{
    cr_assert_eq(HAUL_E_SHORT_IO, -10001);
    cr_assert_eq(HAUL_E_CHECKSUM, -10002);
    cr_assert_eq(HAUL_E_DEVICE, -10003);
    cr_assert_eq(HAUL_E_NCCL, -10004);
    cr_assert_eq(HAUL_E_MPI, -10005);
    cr_assert_eq(HAUL_E_STATE, -10006);
    cr_assert_eq(HAUL_E_PLAN, -10007);
    cr_assert_eq(HAUL_E_CONFIG, -10008);
    cr_assert_eq(HAUL_E_ABI, -10009);
    cr_assert_eq(HAUL_E_FORMAT, -10010);
}

Test(base_fail, a_failure_keeps_its_text_until_the_next)
{
    cr_assert_eq(hl_fail(-EIO, "read %s at %d", "a.bin", 7), -EIO);
    cr_assert_str_eq(haul_last_error(), "read a.bin at 7");
    cr_assert_str_eq(haul_last_error(), "read a.bin at 7");
    cr_assert_eq(hl_fail(HAUL_E_STATE, "unit 3: %s", haul_last_error()), HAUL_E_STATE);
    cr_assert_str_eq(haul_last_error(), "unit 3: read a.bin at 7");
    cr_assert_eq(hl_fail_text(-EIO, "from elsewhere: 100%s"), -EIO);
    cr_assert_str_eq(haul_last_error(), "from elsewhere: 100%s");
    cr_assert_eq(hl_fail_text(-EIO, haul_last_error()), -EIO);
    cr_assert_str_eq(haul_last_error(), "from elsewhere: 100%s");
}

Test(base_fail, a_caller_says_what_failed_as_haul_does)
{
    cr_assert_eq(haul_error_set(HAUL_E_MPI, "rank %d of %d: %s", 2, 4, "gone"), HAUL_E_MPI);
    cr_assert_str_eq(haul_last_error(), "rank 2 of 4: gone");
    cr_assert_eq(haul_error_set(-EIO, "%s, again", haul_last_error()), -EIO);
    cr_assert_str_eq(haul_last_error(), "rank 2 of 4: gone, again");
}

Test(base_fail, a_text_too_long_is_cut)
{
    static char text[2 * HL_ERROR_TEXT_BYTES];

    memset(text, 'x', sizeof text - 1);
    hl_fail(-EIO, "%s", text);
    cr_assert_eq(strlen(haul_last_error()), HL_ERROR_TEXT_BYTES - 1);
    hl_fail_text(-EIO, "short");
    hl_fail_text(-EIO, text);
    cr_assert_eq(strlen(haul_last_error()), HL_ERROR_TEXT_BYTES - 1);
}

static void *other_thread(void *arg)
{
    int clean = strcmp(haul_last_error(), "") == 0;

    hl_fail(-EIO, "the other thread's");
    *(int *)arg = clean;
    return NULL;
}

Test(base_fail, each_thread_has_its_own_last_error)
{
    pthread_t thread;
    int clean = 0;

    hl_fail(-EIO, "mine");
    cr_assert_eq(pthread_create(&thread, NULL, other_thread, &clean), 0);
    pthread_join(thread, NULL);
    cr_assert(clean, "a new thread has no error");
    cr_assert_str_eq(haul_last_error(), "mine");
}

struct heard {
    int n;
    enum haul_log_level level;
    char text[256];
};

static void hear(void *user, enum haul_log_level level, const char *text)
{
    struct heard *h = user;

    h->n++;
    h->level = level;
    snprintf(h->text, sizeof h->text, "%s", text);
}

Test(base_fail, the_log_filters_by_level_and_keeps_to_one_line)
{
    struct heard h = {0};

    haul_log_set(hear, &h, HAUL_LOG_INFO);
    hl_log(HAUL_LOG_DEBUG, "no");
    cr_assert_eq(h.n, 0);
    hl_log(HAUL_LOG_INFO, "%d of %d\nsecond", 1, 2);
    cr_assert_eq(h.n, 1);
    cr_assert_eq(h.level, HAUL_LOG_INFO);
    cr_assert_str_eq(h.text, "1 of 2 second");
    hl_log(HAUL_LOG_ERROR, "bad");
    cr_assert_eq(h.n, 2);
    cr_assert_eq(h.level, HAUL_LOG_ERROR);
    haul_log_set(NULL, NULL, HAUL_LOG_WARN);
    hl_log(HAUL_LOG_INFO, "no");
    cr_assert_eq(h.n, 2);
}

/* What lands on stderr while fn runs. */
static void capture_stderr(void (*fn)(void), char *out, size_t len)
{
    FILE *f = tmpfile();
    int saved = dup(2);
    size_t n;

    cr_assert_not_null(f);
    fflush(stderr);
    dup2(fileno(f), 2);
    fn();
    fflush(stderr);
    dup2(saved, 2);
    close(saved);
    rewind(f);
    n = fread(out, 1, len - 1, f);
    out[n] = '\0';
    fclose(f);
}

static void log_three(void)
{
    haul_log_set(NULL, NULL, HAUL_LOG_WARN);
    hl_log(HAUL_LOG_INFO, "quiet");
    hl_log(HAUL_LOG_WARN, "not bound to node %d", 1);
    hl_log(HAUL_LOG_ERROR, "lost");
}

Test(base_fail, by_default_warnings_and_errors_go_to_stderr)
{
    char text[512];

    capture_stderr(log_three, text, sizeof text);
    cr_assert_str_eq(text, "haul: warning: not bound to node 1\nhaul: error: lost\n", "%s", text);
}

static void *log_much(void *arg)
{
    (void)arg;
    for (int i = 0; i < 1000; i++)
        hl_log(HAUL_LOG_INFO, "line %d", i);
    return NULL;
}

static void count_lines(void *user, enum haul_log_level level, const char *text)
{
    (void)level;
    (void)text;
    __atomic_fetch_add((int *)user, 1, __ATOMIC_RELAXED);
}

Test(base_fail, the_sink_can_change_while_threads_log)
{
    pthread_t threads[2];
    int a = 0, b = 0;

    haul_log_set(count_lines, &a, HAUL_LOG_INFO);
    for (int i = 0; i < 2; i++)
        cr_assert_eq(pthread_create(&threads[i], NULL, log_much, NULL), 0);
    for (int i = 0; i < 100; i++)
        haul_log_set(count_lines, i % 2 ? &a : &b, HAUL_LOG_INFO);
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    haul_log_set(NULL, NULL, HAUL_LOG_WARN);
    cr_assert_eq(a + b, 2000);
}

Test(base_fail, the_version_is_three_numbers)
{
    int a, b, c, end = 0;

    cr_assert_eq(sscanf(haul_version(), "%d.%d.%d%n", &a, &b, &c, &end), 3);
    cr_assert_eq((size_t)end, strlen(haul_version()));
}
