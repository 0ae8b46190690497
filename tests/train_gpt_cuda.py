#!/usr/bin/env python3
"""train_gpt --device cuda from outside: train_gpt_cuda.py PROGRAM FOLDER fast|slow over a driver and a cuBLAS that
are fakes, which FOLDER holds, and which say nothing about a GPU's speed; train_gpt_cuda.py PROGRAM - gpu over those
of the machine."""
import functools
import json
import os
import subprocess
import sys
import tempfile

FAKES = os.path.abspath(sys.argv.pop(2))
SET = sys.argv.pop(2)
SLOW, GPU = SET == "slow", SET == "gpu"

from train_gpt_runner import PROGRAM, Skip, main, plan, run  # noqa: it reads the words above

TINY = ["--layers", 2, "--dim", 32, "--heads", 2, "--seq", 32, "--batch", 4]
ON_FAKES = {} if GPU else {"LD_LIBRARY_PATH": FAKES}


def train(*flags, env=None):
    result = run(*flags, "--quiet", "--digest", "--jsonl", "{jsonl}", env=env)
    assert result.rc == 0, (flags, result.rc, result.err)
    assert result.err == "", (flags, result.err)  # the fakes tell wrong uses there
    return result


def cuda(*flags, env=None):
    return train(*flags, "--device", "cuda", env=dict(ON_FAKES, **(env or {})))


def on_a_gpu(test):
    """The test, skipped where there is no GPU or no cuBLAS."""
    @functools.wraps(test)
    def serve():
        probe = run(*TINY, "--steps", 1, "--quiet", "--device", "cuda")
        if probe.rc == 3:
            raise Skip(probe.err.strip())
        test()
    return serve


def follows(*flags):
    host, gpu = train(*flags).losses, cuda(*flags).losses
    assert len(host) == len(gpu) > 0
    for step, (a, b) in enumerate(zip(host, gpu), 1):
        assert abs(a - b) <= 2e-2 * a, (flags, step, a, b)
    assert host != gpu, "one program computed both"


def losses_are_the_cpus_within_2_percent():
    follows(*TINY, "--steps", 50)


def losses_follow_in_other_types_and_orders_too():
    for flags in (["--dtype", "fp16"], ["--dtype", "fp32"], ["--grad-dtype", "fp32"],
                  ["--accum", 2, "--order", "batch"], ["--accum", 4, "--no-recompute"]):
        follows(*TINY, "--steps", 10, *flags)


def losses_follow_over_more_than_one_tile_of_scores():
    follows("--layers", 1, "--dim", 24, "--heads", 2, "--seq", 300, "--batch", 1, "--steps", 8)


def the_same_digest_wherever_state_lives():
    small = TINY + ["--steps", 6]
    first = cuda(*small)
    for flags in (["--offload", "none"], ["--offload", "optimizer"], ["--window", 3],
                  ["--threads", 1], ["--master", "split"], ["--no-overlap"], ["--no-recompute"],
                  ["--stash"]):
        other = cuda(*small, *flags)
        assert other.digest == first.digest and other.losses == first.losses, flags
    assert cuda(*small, "--seed", 2).digest != first.digest


def the_same_digest_under_delays():
    small = TINY + ["--steps", 3]
    first = cuda(*small)
    for seed in range(1, 201 if SLOW else 5):
        for flags in (["--window", 1], ["--offload", "optimizer"]):
            other = cuda(*small, *flags, env={"FAKE_CUDA_SEED": str(seed)})
            assert other.digest == first.digest and other.losses == first.losses, (seed, flags)


def a_failing_call_of_the_driver_ends_the_run_with_one_line():
    small = ["--layers", 1, "--dim", 8, "--heads", 2, "--seq", 8, "--batch", 2, "--steps", 2,
             "--quiet", "--digest", "--device", "cuda"]
    whole, nfailed = run(*small, env=ON_FAKES), 0
    for nth in range(1, 1000, 1 if SLOW else 41):
        result = run(*small, env=dict(ON_FAKES, FAKE_CUDA_FAIL_NTH=str(nth)), timeout=60)
        if result.rc == 0:  # not needed, such as pinning memory; or after the last call
            assert result.out == whole.out, (nth, result.out)
            continue
        nfailed += 1
        assert result.rc in (1, 3), (nth, result.rc, result.err)  # 99: something was left
        assert result.err.startswith("train_gpt: ") and result.err.count("\n") == 1, (nth, result.err)
    assert nfailed > (500 if SLOW else 10), nfailed


def state_on_nvme_too():
    small = TINY + ["--layers", 8, "--steps", 4]
    paged = small + ["--nvme", "{nvme}", "--slot-bytes", 65536, "--device", "cuda"]
    least = plan(*paged, "--host-mem", 1, env=ON_FAKES)["host", "in all"]
    other = cuda(*paged, "--host-mem", least)
    assert other.summary["peaks"]["nvme"] > 0, other.summary
    assert other.digest == cuda(*small).digest


def peaks_are_the_plan_and_a_byte_less_is_refused():
    for flags in ([], ["--offload", "none"], ["--dtype", "fp16"], ["--accum", 2, "--no-recompute"]):
        summary = cuda(*TINY, "--steps", 2, *flags).summary
        assert summary["planned"] == summary["peaks"], (flags, summary)
        need = summary["planned"]["device"]
        cuda(*TINY, "--steps", 2, *flags, "--device-mem", need)
        if not flags:
            result = run(*TINY, "--device", "cuda", "--device-mem", need - 1, env=ON_FAKES)
            assert result.rc == 1 and "short by 1 B" in result.err, (result.rc, result.err)


def a_model_that_does_not_fit_trains_within_the_memory_that_is_given():
    # 16 bytes a parameter: 1.6 GB on a GPU
    shape = ["--layers", 8, "--dim", 1024 if GPU else 256, "--heads", 4, "--seq", 16, "--batch", 2]
    whole = plan(*shape, "--device", "cuda", "--offload", "none", env=ON_FAKES)
    state = 8 * whole["device", "parameters"]
    cap = plan(*shape, "--device", "cuda", env=ON_FAKES)["device", "trainer"] + state // 2
    assert cap < state, (cap, state)
    result = cuda(*shape, "--steps", 3, "--device-mem", cap)
    assert result.summary["peaks"]["device"] <= cap < 16 * whole["device", "parameters"] // 2, result.summary
    assert result.digest == cuda(*shape, "--steps", 3, "--offload", "none").digest


def bench_puts_each_offload_beside_the_device():
    flags = [*TINY, "--device", "cuda", "--bench", "--steps", 3]
    result = run(*flags, "--json", env=ON_FAKES)
    assert result.rc == 0 and result.err == "", (result.rc, result.err)
    found = json.loads(result.out)
    assert found["emulated"] is False and found["steps"] == 3 and found["interleaved"] is True, found
    assert found["state_bytes"] == 16 * found["params"] and found["tokens_per_step"] == 128, found
    rows = found["rows"]
    assert [row["offload"] for row in rows] == ["none", "optimizer", "all"], rows
    assert rows[0]["penalty"] is None, rows
    for row in rows:
        assert row["fits"] and row["planned"] == row["peaks"], row
        assert 0 < row["fastest_ms"] <= row["step_ms"] <= row["slowest_ms"], row
        assert abs(row["tokens_per_s"] * row["step_ms"] / 128e3 - 1) < 1e-6, row
        assert abs(row["step_ms"] / rows[0]["step_ms"] - 1 - (row["penalty"] or 0)) < 1e-6, row
        assert set(row["exposed_ms"]) == {"h2d", "d2h", "optim", "io_read", "io_write"}, row
    params = found["params"]
    assert rows[0]["bytes"]["d2h"] < params < rows[1]["bytes"]["d2h"] / 2, rows
    assert rows[2]["bytes"]["h2d"] > 3 * params, rows  # weights, forward and backward, less what has stayed
    # 2 x 4 steps of the same batches: the warm turn counts
    assert found["digest"] == cuda(*TINY, "--steps", 8).digest
    table = run(*flags, env=ON_FAKES)
    assert table.rc == 0 and "penalty" in table.out and "emulated" not in table.out, table.out


def refuse(words, env, *flags):
    result = run(*TINY, *flags, env=env)
    assert result.rc == 3, (result.rc, result.err)
    assert result.out == "" and result.err.count("\n") == 1, (result.out, result.err)
    for word in words:
        assert word in result.err, (word, result.err)


def without_a_driver_one_line_says_so():
    alone = {"LD_LIBRARY_PATH": ""}  # the build may have put the fakes there
    if subprocess.run([sys.executable, "-c", "import ctypes; ctypes.CDLL('libcuda.so.1')"],
                      env=dict(os.environ, **alone), stderr=subprocess.DEVNULL,
                      check=False).returncode == 0:
        raise Skip("a machine without a CUDA driver")
    refuse(["no CUDA driver", "install", "--device host"], alone, "--device", "cuda")


def without_cublas_one_line_says_so():
    with tempfile.TemporaryDirectory() as folder:
        os.symlink(os.path.join(FAKES, "libcuda.so.1"), os.path.join(folder, "libcuda.so.1"))
        for name in ("libcublas.so.13", "libcublas.so.12"):
            with open(os.path.join(folder, name), "w") as f:
                f.write("no library")
        refuse(["no cuBLAS", "install", "--device host"], {"LD_LIBRARY_PATH": folder},
               "--device", "cuda")


def without_its_program_beside_it_train_gpt_says_so():
    with tempfile.TemporaryDirectory() as folder:
        alone = os.path.join(folder, "train_gpt")
        with open(PROGRAM, "rb") as source, open(alone, "wb") as copy:
            copy.write(source.read())
        os.chmod(alone, 0o755)
        result = run("--device", "cuda", program=alone, env={
            "LD_LIBRARY_PATH": os.path.join(os.path.dirname(PROGRAM), "../../lib")})
    assert result.rc == 3 and "train_gpt_cuda" in result.err, (result.rc, result.err)
    assert result.err.count("\n") == 1, result.err


def each_program_starts_the_other():
    there = os.path.join(os.path.dirname(PROGRAM), "train_gpt_cuda")
    flags = [*TINY, "--steps", 2, "--quiet", "--digest"]
    result = run(*flags, "--device", "host", program=there)
    assert result.rc == 0 and result.out == run(*flags).out, result.err
    result = run(*flags, program=there, env=ON_FAKES)
    assert result.rc == 0 and result.out == run(*flags, "--device", "cuda", env=ON_FAKES).out
    result = run(*flags, "--device", "cuda", "--link-gbps", 1)
    assert result.rc == 2 and "--link-gbps" in result.err, result.err


EVERYWHERE = [losses_are_the_cpus_within_2_percent, losses_follow_in_other_types_and_orders_too,
              losses_follow_over_more_than_one_tile_of_scores, the_same_digest_wherever_state_lives,
              state_on_nvme_too, peaks_are_the_plan_and_a_byte_less_is_refused,
              a_model_that_does_not_fit_trains_within_the_memory_that_is_given,
              bench_puts_each_offload_beside_the_device]
WITH_FAKES = [the_same_digest_under_delays, a_failing_call_of_the_driver_ends_the_run_with_one_line]
main([on_a_gpu(test) for test in EVERYWHERE] if GPU else WITH_FAKES if SLOW else
     EVERYWHERE + WITH_FAKES +
     [without_a_driver_one_line_says_so, without_cublas_one_line_says_so,
      without_its_program_beside_it_train_gpt_says_so, each_program_starts_the_other])
