/* The CUDA back end over a fake driver, or a GPU: choosing, memory, pinning, copies. */
#include <sys/mman.h>

#include "test_cuda_fixture.h"

static struct haul_device *open_with(const struct haul_device_cuda_opts *opts, int want)
{
    struct haul_device *dev = NULL;
    int rc = haul_device_cuda_open(opts, &dev);

    cr_assert_eq(rc, want, "%d: %s", rc, haul_last_error());
    cr_assert_eq(dev == NULL, rc < 0);
    return dev;
}

static struct haul_device_cuda_opts cuda_opts(void)
{
    struct haul_device_cuda_opts opts;

    haul_device_cuda_opts_init(&opts);
    return opts;
}

/* Before anything else loads the fake driver in this process. */
Test(cuda_device, without_a_driver_open_says_what_to_do)
{
    void *lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);

    if (lib || (lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL))) {
        dlclose(lib);
        SKIP("a machine without a CUDA driver");
    }
    open_with(NULL, HAUL_E_DEVICE);
    error_says("no CUDA driver");
    error_says("--device host");
}

Test(cuda_device, a_driver_without_gpus_says_what_to_do)
{
    fake_load();
    fake.configure(&(struct fake_cuda_config){.init_result = CUDA_NO_DEVICE});
    open_with(NULL, HAUL_E_DEVICE);
    error_says("shows no GPU");
    fake.configure(&(struct fake_cuda_config){.init_result = CUDA_UNKNOWN});
    open_with(NULL, HAUL_E_DEVICE);
    error_says("CUDA_ERROR_UNKNOWN");
    fake.configure(&(struct fake_cuda_config){.ndevices = -1});
    open_with(NULL, HAUL_E_DEVICE);
    error_says("CUDA_VISIBLE_DEVICES");
    fake_is_clean("refused");
}

Test(cuda_device, an_old_gpu_is_refused_by_name)
{
    fake_load();
    fake.configure(&(struct fake_cuda_config){.major = 7});
    open_with(NULL, HAUL_E_DEVICE);
    error_says("compute capability 7");
    fake_is_clean("refused");
}

Test(cuda_device, a_device_is_chosen_by_ordinal_rank_or_uuid)
{
    struct haul_device_cuda_opts opts = cuda_opts();
    struct haul_device *dev;

    fake_load();
    fake.configure(&(struct fake_cuda_config){.ndevices = 3});
    opts.ordinal = 2;
    dev = open_with(&opts, 0);
    cr_assert_not_null(strstr(haul_device_name(dev), "GPU 2"));
    cuda_close(dev);
    opts.ordinal = 3;
    open_with(&opts, HAUL_E_DEVICE);
    error_says("no GPU 3");
    opts = cuda_opts();
    opts.local_rank = 1;
    dev = open_with(&opts, 0);
    cr_assert_not_null(strstr(haul_device_name(dev), "GPU 1"));
    cuda_close(dev);
    opts.local_rank = 3;
    open_with(&opts, -EINVAL);
    opts = cuda_opts();
    opts.uuid = "gpu-FA4E0202-02";
    dev = open_with(&opts, 0);
    cr_assert_not_null(strstr(haul_device_name(dev), "GPU 2"));
    cuda_close(dev);
    opts.uuid = "GPU-fa4e";
    open_with(&opts, HAUL_E_DEVICE);
    error_says("more than one");
    opts.uuid = "GPU-1234";
    open_with(&opts, HAUL_E_DEVICE);
    error_says("GPU-1234");
    opts.ordinal = 0;
    open_with(&opts, -EINVAL);
    fake_is_clean("chosen");
}

Test(cuda_device, a_process_that_sees_one_gpu_takes_it_whatever_its_rank)
{
    struct haul_device_cuda_opts opts = cuda_opts();

    fake_load();
    fake.configure(&(struct fake_cuda_config){.ndevices = 1});
    opts.local_rank = 5;
    cuda_close(open_with(&opts, 0));
}

Test(cuda_device, the_options_keep_their_layout)
{
    struct haul_device_cuda_opts opts = cuda_opts();

    cr_assert_eq(offsetof(struct haul_device_cuda_opts, ordinal), 8u);
    cr_assert_eq(offsetof(struct haul_device_cuda_opts, local_rank), 12u);
    cr_assert_eq(offsetof(struct haul_device_cuda_opts, uuid), 16u);
    cr_assert_eq(offsetof(struct haul_device_cuda_opts, mem_bytes), 24u);
    cr_assert_eq(sizeof(struct haul_device_cuda_opts), 32u);
    opts.struct_size = 8;
    open_with(&opts, HAUL_E_ABI);
    cr_assert_eq(haul_device_cuda_open(NULL, NULL), -EINVAL);
}

/* ---- the node that a GPU hangs on ---- */

/* Of four GPUs. In the recorded machine, which has nodes 0 and 4 of the system, logically 0 and 1, GPU 0 is
 * on the latter and GPU 1 on the former, GPU 2 on neither, and GPU 3 is not there. */
static void nodes_are_those_of_the_recording(void)
{
    static const int want[4] = {1, 0, -1, -1};
    int node[4];

    fake_load();
    fake.configure(&(struct fake_cuda_config){.ndevices = 4});
    cr_assert_eq(setenv("HWLOC_XMLFILE", HAUL_TEST_SOURCES "/fixtures/two_nodes_three_gpus.xml", 1),
                 0);
    for (int i = 0; i < 4; i++) {
        struct haul_device_cuda_opts opts = cuda_opts();
        struct haul_device *dev;

        opts.ordinal = i;
        dev = open_with(&opts, 0);
        node[i] = dev->ops->numa_node(dev);
        cuda_close(dev);
    }
    unsetenv("HWLOC_XMLFILE");
    for (int i = 0; i < 4; i++)
        cr_assert_eq(node[i], want[i], "GPU %d: node %d", i, node[i]);
}

Test(cuda_device, the_node_is_the_one_that_its_pci_address_hangs_on)
{
    fake_only("it says where its GPUs are");
    nodes_are_those_of_the_recording();
}

/* hwloc reads recordings with libxml2 where its plugins are there, else with a reader of its own, which
 * takes less: no comment, for one. */
Test(cuda_device, the_recording_is_read_without_hwlocs_plugins_too)
{
    const char *set = getenv("HWLOC_PLUGINS_PATH");

    fake_only("it says where its GPUs are");
    cr_assert_eq(setenv("HWLOC_PLUGINS_PATH", "/nowhere", 0), 0);
    nodes_are_those_of_the_recording();
    if (!set)
        unsetenv("HWLOC_PLUGINS_PATH");
}

static struct haul_device_mem mem_of(struct haul_device *dev)
{
    struct haul_device_mem mem = {.struct_size = sizeof mem};

    cr_assert_eq(haul_device_mem_info(dev, &mem), 0);
    return mem;
}

Test(cuda_device, the_cap_holds_to_the_byte)
{
    struct haul_device_cuda_opts opts = cuda_opts();
    struct haul_device *dev;
    void *a, *b = NULL;

    driver_load();
    opts.mem_bytes = 1000;
    dev = open_with(&opts, 0);
    a = device_mem(dev, 600);
    cr_assert_eq((uintptr_t)a % 256, 0u);
    cr_assert_eq(haul_device_alloc(dev, 401, &b), -ENOMEM);
    cr_assert_null(b);
    error_says("cap 1000, used 600, short by 1");
    b = device_mem(dev, 400);
    cr_assert_eq(mem_of(dev).total_bytes, 1000u);
    cr_assert_eq(mem_of(dev).used_bytes, 1000u);
    haul_device_free(dev, a);
    haul_device_free(dev, b);
    cr_assert_eq(mem_of(dev).used_bytes, 0u);
    cr_assert_eq(mem_of(dev).peak_bytes, 1000u);
    cr_assert_eq(haul_device_alloc(dev, 0, &b), -EINVAL);
    cuda_close(dev);
}

Test(cuda_device, a_full_gpu_says_what_is_free)
{
    struct haul_device *dev = fake_open("a GPU of a megabyte");
    void *p = NULL;

    fake.configure(&(struct fake_cuda_config){.mem_bytes = 1000000});
    cr_assert_eq(mem_of(dev).total_bytes, 1000000u);
    cr_assert_eq(haul_device_alloc(dev, 1000001, &p), -ENOMEM);
    error_says("1000000 free of 1000000");
    cr_assert_null(p);
    cr_assert_eq(mem_of(dev).used_bytes, 0u);
    cuda_close(dev);
}

Test(cuda_device, a_range_must_lie_in_one_live_allocation)
{
    struct haul_device *dev = cuda_open();
    void *s = device_stream(dev);
    char *a = device_mem(dev, 1000), *b = device_mem(dev, 1000);
    static char host[3000];

    cr_assert_eq(haul_device_copy_h2d(dev, a + 999, host, 1, s), 0);
    cr_assert_eq(haul_device_copy_h2d(dev, a, host, 0, s), 0, "an empty copy is none");
    cr_assert_eq(haul_device_copy_h2d(dev, a, host, 1001, s), -EINVAL);
    error_says("not inside one live allocation");
    cr_assert_eq(haul_device_copy_h2d(dev, a + 1, host, UINT64_MAX, s), -EINVAL);
    cr_assert_eq(haul_device_copy_h2d(dev, host, host + 1500, 10, s), -EINVAL, "host memory");
    cr_assert_eq(haul_device_copy_h2d(dev, a, NULL, 10, s), -EINVAL);
    cr_assert_eq(dev->ops->copy_d2d(dev, a, b, 1000, s), 0);
    cr_assert_eq(dev->ops->copy_d2d(dev, a, a + 499, 500, s), -EINVAL, "overlap");
    cr_assert_eq(dev->ops->fill(dev, b, 0, 1001, s), -EINVAL);
    cr_assert_eq(haul_device_stream_sync(dev, s), 0);
    haul_device_free(dev, a);
    cr_assert_eq(haul_device_copy_h2d(dev, a, host, 1, s), -EINVAL, "freed");
    haul_device_free(dev, b);
    haul_device_stream_close(dev, s);
    cuda_close(dev);
}

/* Two handles on one context: what the one allocated is to the other what a trainer got by itself. */
Test(cuda_device, memory_that_the_trainer_allocated_is_device_memory)
{
    struct haul_device *dev = cuda_open(), *other = NULL;
    char *p, in[64] = "the trainer's", out[64] = "";
    void *s = device_stream(dev);

    cr_assert_eq(haul_device_cuda_open(NULL, &other), 0);
    p = device_mem(other, 64);
    cr_assert_eq(haul_device_copy_h2d(dev, p, in, 64, s), 0);
    cr_assert_eq(haul_device_copy_d2h(dev, out, p, 64, s), 0);
    cr_assert_eq(haul_device_stream_sync(dev, s), 0);
    cr_assert_str_eq(out, in);
    haul_device_free(other, p);
    haul_device_stream_close(dev, s);
    cr_assert_eq(haul_device_close(other), 0);
    cuda_close(dev);
}

static char *map(uint64_t bytes)
{
    char *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    cr_assert_neq((void *)p, MAP_FAILED);
    return p;
}

/* Up and down again, both directions at once, from the offsets at which a registration might end. */
static void round_trip(struct haul_device *dev, char *host, uint64_t bytes)
{
    char *p = device_mem(dev, bytes), *back = host + bytes;
    void *s = device_stream(dev);

    for (uint64_t i = 0; i < bytes; i++)
        host[i] = (char)(i * 31 + (i >> 12));
    memset(back, 0, bytes);
    cr_assert_eq(haul_device_copy_h2d(dev, p, host, bytes, s), 0, "%s", haul_last_error());
    cr_assert_eq(haul_device_copy_d2h(dev, back, p, bytes, s), 0, "%s", haul_last_error());
    cr_assert_eq(haul_device_stream_sync(dev, s), 0);
    cr_assert_eq(memcmp(host, back, bytes), 0);
    haul_device_stream_close(dev, s);
    haul_device_free(dev, p);
}

static unsigned nwarnings;
static char warning[1024];

static void note_warning(void *user, enum haul_log_level level, const char *text)
{
    nwarnings++;
    snprintf(warning, sizeof warning, "%s", text);
}

Test(cuda_device, pool_memory_is_pinned_and_copied_from_as_it_is)
{
    struct haul_device *dev = cuda_open();
    uint64_t bytes = 40 * MIB;
    char *host = map(2 * bytes);

    cr_assert_eq(dev->ops->host_register(dev, host, 2 * bytes), 0);
    round_trip(dev, host, bytes);
    cr_assert_eq(dev->ops->host_unregister(dev, host), 0);
    round_trip(dev, host, bytes); /* the driver bounces it */
    munmap(host, 2 * bytes);
    cuda_close(dev);
}

Test(cuda_device, a_refused_registration_is_tried_in_smaller_pieces)
{
    struct haul_device *dev = fake_open("it refuses to pin");
    uint64_t bytes = 50 * MIB;
    char *host = map(2 * bytes);

    nwarnings = 0;
    haul_log_set(note_warning, NULL, HAUL_LOG_WARN);
    fake.configure(&(struct fake_cuda_config){.pin_at_once = 16 * MIB});
    cr_assert_eq(dev->ops->host_register(dev, host, 2 * bytes), 0);
    cr_assert_eq(nwarnings, 0u, "%s", warning);
    round_trip(dev, host, bytes); /* every copy crosses ends of registrations */
    cr_assert_eq(dev->ops->host_unregister(dev, host), 0);
    haul_log_set(NULL, NULL, HAUL_LOG_WARN);
    munmap(host, 2 * bytes);
    cuda_close(dev);
}

Test(cuda_device, memory_that_cannot_be_pinned_is_used_as_it_is_and_said_once)
{
    struct haul_device *dev = fake_open("it refuses to pin");
    uint64_t bytes = 50 * MIB;
    char *host = map(2 * bytes);

    nwarnings = 0;
    haul_log_set(note_warning, NULL, HAUL_LOG_WARN);
    fake.configure(&(struct fake_cuda_config){.pin_bytes = 60 * MIB});
    int64_t before = fake.live();
    cr_assert_eq(dev->ops->host_register(dev, host, 2 * bytes), 0);
    cr_assert_eq(fake.live(), before, "what was registered meanwhile is given back");
    cr_assert_eq(nwarnings, 1u);
    cr_assert_not_null(strstr(warning, "RLIMIT_MEMLOCK"), "%s", warning);
    cr_assert_not_null(strstr(warning, "CUDA_ERROR_OUT_OF_MEMORY"), "%s", warning);
    round_trip(dev, host, bytes);
    cr_assert_eq(dev->ops->host_unregister(dev, host), 0, "nothing to do");
    cr_assert_eq(dev->ops->host_register(dev, host, 2 * bytes), 0);
    cr_assert_eq(nwarnings, 1u, "once");
    haul_log_set(NULL, NULL, HAUL_LOG_WARN);
    munmap(host, 2 * bytes);
    cuda_close(dev);
}

Test(cuda_device, neighbouring_registrations_are_kept_apart)
{
    struct haul_device *dev = fake_open("it counts registrations");
    char *host = map(4 * MIB);
    int64_t before = fake.live();

    cr_assert_eq(dev->ops->host_register(dev, host, 2 * MIB), 0);
    cr_assert_eq(dev->ops->host_register(dev, host + 2 * MIB, 2 * MIB), 0);
    round_trip(dev, host, 2 * MIB);
    cr_assert_eq(dev->ops->host_unregister(dev, host), 0);
    cr_assert_eq(fake.live(), before + 1);
    cr_assert_eq(dev->ops->host_unregister(dev, host + 2 * MIB), 0);
    cr_assert_eq(fake.live(), before);
    cr_assert_eq(dev->ops->host_register(dev, NULL, 10), -EINVAL);
    munmap(host, 4 * MIB);
    cuda_close(dev);
}

Test(cuda_device, close_reports_what_was_left_and_frees_it)
{
    struct census before = census_take();
    struct haul_device *dev = cuda_open();
    struct hl_event *ev = device_event(dev);
    char *host = map(MIB);

    device_mem(dev, 100);
    device_mem(dev, MIB);
    device_stream(dev);
    cr_assert_eq(dev->ops->host_register(dev, host, MIB), 0);
    cr_assert_eq(dev->ops->event_record(dev, ev, NULL), 0);
    cr_assert_eq(haul_device_close(dev), HAUL_E_STATE);
    error_says("2 allocations (1048676 bytes), 1 streams and 1 events");
    fake_is_clean("closed");
    census_same(&before);
    munmap(host, MIB);
}

Test(cuda_device, lanes_count_bytes_and_time_of_copies)
{
    struct haul_device *dev = cuda_open();
    struct hl_device_lane_stats up, down, other;
    static char host[1000];
    char *p = device_mem(dev, 1000);
    void *s = device_stream(dev);
    uint64_t before = hl_clock_ns();

    /* More than are timed at once. */
    for (int i = 0; i < 300; i++)
        cr_assert_eq(haul_device_copy_h2d(dev, p, host, 1000, s), 0);
    cr_assert_eq(haul_device_copy_d2h(dev, host, p, 10, s), 0);
    cr_assert_eq(haul_device_stream_sync(dev, s), 0);
    dev->ops->lane_stats(dev, HL_DEVICE_H2D, &up);
    dev->ops->lane_stats(dev, HL_DEVICE_D2H, &down);
    dev->ops->lane_stats(dev, HL_DEVICE_COMPUTE, &other);
    cr_assert_eq(up.bytes, 300000u);
    cr_assert_eq(down.bytes, 10u);
    cr_assert_gt(up.busy_ns, 0u);
    cr_assert_gt(down.busy_ns, 0u);
    cr_assert_leq(up.busy_ns + down.busy_ns, hl_clock_ns() - before);
    cr_assert_eq(other.busy_ns + other.bytes, 0u, "the trainer's kernels are not seen");
    haul_device_stream_close(dev, s);
    haul_device_free(dev, p);
    cuda_close(dev);
}
