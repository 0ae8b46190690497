#!/usr/bin/env python3
"""train_gpt_acceptance.py PROGRAM: the main job at its documented size: it learns, and the bits do not
depend on where state lives or what computes the updates. A few minutes."""
from train_gpt_runner import in_memory_cgroup, main, train

JOB = ["--layers", 4, "--dim", 128, "--heads", 4, "--seq", 128, "--batch", 8, "--steps", 300,
       "--seed", 1]


def mean_of_last(result, n=20):
    return sum(result.losses[-n:]) / n


def the_loss_falls_from_ln_256_to_under_2_6_and_twice_the_same():
    first, again = train(*JOB, "--offload", "all"), train(*JOB, "--offload", "all")
    assert 5.45 < first.losses[0] < 5.75, first.losses[0]
    assert mean_of_last(first) < 2.6, mean_of_last(first)
    assert (again.digest, again.losses) == (first.digest, first.losses)
    the_loss_falls_from_ln_256_to_under_2_6_and_twice_the_same.result = first


def every_placement_thread_count_and_instruction_set_gives_these_bits():
    first = the_loss_falls_from_ln_256_to_under_2_6_and_twice_the_same.result
    for flags, mask in ((["--offload", "none"], None), (["--offload", "optimizer"], None),
                        (["--threads", 1], None), (["--threads", 2], None), ([], "c"),
                        ([], "avx2"), ([], "avx512")):
        other = train(*JOB, *flags, env={"HAUL_CPU_MASK": mask} if mask else {})
        assert (other.digest, other.losses) == (first.digest, first.losses), (flags, mask)


def layer_and_batch_order_agree_to_half_a_percent():
    layer, batch = (mean_of_last(train(*JOB, "--accum", 4, "--order", order))
                    for order in ("layer", "batch"))
    assert abs(layer - batch) < 5e-3 * layer, (layer, batch)


def clipping_changes_the_run():
    assert train(*JOB, "--clip", 1e9).digest != train(*JOB, "--clip", 0.01).digest


def fp16_with_a_loss_scale_learns_as_well():
    first = the_loss_falls_from_ln_256_to_under_2_6_and_twice_the_same.result
    half = train(*JOB, "--dtype", "fp16")
    assert abs(mean_of_last(half) - mean_of_last(first)) < 0.01 * mean_of_last(first), mean_of_last(half)
    assert sum(line["skipped"] for line in half.lines[:-1]) < 10


def a_memory_cgroup_a_little_above_the_plan_serves_and_well_below_is_refused():
    flags = ["--layers", 4, "--dim", 512, "--heads", 8, "--seq", 64, "--batch", 2, "--steps", 2]
    plan = sum(train(*flags).summary["planned"].values())
    fits, _ = in_memory_cgroup(plan + (96 << 20), *flags)  # what libraries, stacks and BLAS take
    assert fits.rc == 0, fits.err
    refused, _ = in_memory_cgroup(plan // 2, *flags)
    assert refused.rc == 1 and "short by" in refused.err and "records" in refused.err, refused.err


main([the_loss_falls_from_ln_256_to_under_2_6_and_twice_the_same,
      every_placement_thread_count_and_instruction_set_gives_these_bits,
      layer_and_batch_order_agree_to_half_a_percent, clipping_changes_the_run,
      fp16_with_a_loss_scale_learns_as_well,
      a_memory_cgroup_a_little_above_the_plan_serves_and_well_below_is_refused])
