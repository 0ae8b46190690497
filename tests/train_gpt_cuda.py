#!/usr/bin/env python3
"""train_gpt --device cuda from outside, over a driver and a cuBLAS that are fakes: train_gpt_cuda.py PROGRAM
FOLDER fast|slow, where FOLDER holds both. Says nothing about a GPU's speed."""
import os
import subprocess
import sys
import tempfile

FAKES = os.path.abspath(sys.argv.pop(2))
SLOW = sys.argv.pop(2) == "slow"

from train_gpt_runner import PROGRAM, Skip, main, plan, run  # noqa: it reads the words above

TINY = ["--layers", 2, "--dim", 32, "--heads", 2, "--seq", 32, "--batch", 4]
ON_FAKES = {"LD_LIBRARY_PATH": FAKES}


def train(*flags, env=None):
    result = run(*flags, "--quiet", "--digest", "--jsonl", "{jsonl}", env=env)
    assert result.rc == 0, (flags, result.rc, result.err)
    assert result.err == "", (flags, result.err)  # the fakes tell wrong uses there
    return result


def cuda(*flags, env=None):
    return train(*flags, "--device", "cuda", env=dict(ON_FAKES, **(env or {})))


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


main([the_same_digest_under_delays, a_failing_call_of_the_driver_ends_the_run_with_one_line] if SLOW else
     [losses_are_the_cpus_within_2_percent, losses_follow_in_other_types_and_orders_too,
      losses_follow_over_more_than_one_tile_of_scores, the_same_digest_wherever_state_lives,
      the_same_digest_under_delays, a_failing_call_of_the_driver_ends_the_run_with_one_line,
      state_on_nvme_too, peaks_are_the_plan_and_a_byte_less_is_refused, without_a_driver_one_line_says_so,
      without_cublas_one_line_says_so, without_its_program_beside_it_train_gpt_says_so,
      each_program_starts_the_other])
