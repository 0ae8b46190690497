/* The communicator of one rank. */
#include "comm.h"
#include "test_device_fixture.h"

Test(comm_self, it_is_rank_0_of_1_and_unwinds)
{
    struct census before;
    struct haul_device *dev = device_plain();
    struct haul_comm *comm = NULL;
    double values[2] = {1.5, -2.0};

    before = census_take();
    if (hl_sys_fail_nth(1, ENOMEM) == 0) {
        cr_assert_eq(haul_comm_self_open(dev, &comm), -ENOMEM);
        hl_sys_fail_nth(0, 0);
        cr_assert_null(comm);
        census_same(&before);
    }
    cr_assert_eq(haul_comm_self_open(dev, &comm), 0);
    cr_assert_eq(comm->rank, 0u);
    cr_assert_eq(comm->nranks, 1u);
    cr_assert_eq(comm->ops->all_reduce(comm, HAUL_COMM_SUM_F64, values, 2), 0);
    cr_assert_eq(values[0], 1.5);
    cr_assert_eq(values[1], -2.0);
    cr_assert_eq(comm->ops->barrier(comm), 0);
    haul_comm_close(comm);
    haul_comm_close(NULL);
    census_same(&before);
    cr_assert_eq(haul_device_close(dev), 0);
}

Test(comm_self, gather_and_reduce_copy)
{
    static const uint32_t in[4] = {0x3f808000, 0xbf808000, 0x80000000, 0x00000001};
    struct haul_device *dev = device_plain();
    void *s = device_stream(dev);
    char *mem = device_mem(dev, 64);
    struct haul_comm *comm = NULL;
    struct haul_comm_count counts[HAUL_COMM_NKINDS] = {{0}};
    struct hl_comm_reduce reduce = {.src = mem, .dst = mem + 32, .dtype = HAUL_FP32, .n = 4};
    uint32_t wide[4];
    uint32_t got[4];

    cr_assert_eq(haul_comm_self_open(dev, &comm), 0);
    cr_assert_eq(haul_device_copy_h2d(dev, mem, in, sizeof in, s), 0);
    cr_assert_eq(hl_comm_reduce_scratch_bytes(1, HAUL_FP32, 4), 0u);
    cr_assert_eq(hl_comm_reduce_scatter(comm, counts, &reduce, s), 0);
    cr_assert_eq(haul_device_copy_d2h(dev, got, mem + 32, sizeof got, s), 0);
    cr_assert_eq(hl_comm_all_gather(comm, counts, mem + 48, mem, HAUL_FP32, 4, s), 0);
    cr_assert_eq(hl_comm_all_gather(comm, counts, mem, mem, HAUL_FP32, 4, s), 0, "in place");
    cr_assert_eq(comm->ops->broadcast(comm, mem, 16, 0, s), 0);
    cr_assert_eq(comm->ops->broadcast(comm, mem, 16, 1, s), -EINVAL);
    cr_assert_eq(hl_comm_all_gather(comm, counts, mem + 49, mem, HAUL_FP32, 4, s), -EINVAL);
    cr_assert_eq(haul_device_copy_d2h(dev, wide, mem + 48, sizeof wide, s), 0);
    cr_assert_eq(haul_device_stream_sync(dev, s), 0);
    cr_assert_eq(memcmp(got, in, 3 * sizeof *got), 0);
    cr_assert_eq(memcmp(wide, in, sizeof wide), 0);

    cr_assert_eq(counts[HAUL_COMM_ALL_GATHER].calls, 2u, "refused calls are not counted");
    cr_assert_eq(counts[HAUL_COMM_ALL_GATHER].elems, 8u);
    cr_assert_eq(counts[HAUL_COMM_REDUCE_SCATTER].elems, 4u);
    cr_assert_eq(counts[HAUL_COMM_ALL_GATHER].sent_bytes, 0u, "one rank sends nothing");
    cr_assert_eq(counts[HAUL_COMM_REDUCE_SCATTER].sent_elems, 0u);
    haul_comm_close(comm);
    haul_device_free(dev, mem);
    haul_device_stream_close(dev, s);
    cr_assert_eq(haul_device_close(dev), 0);
}
