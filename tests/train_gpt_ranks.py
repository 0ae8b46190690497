"""train_gpt under mpirun: one digest for every stage and tier, losses over rank counts, ranks that are killed.

Usage: train_gpt_ranks.py PROGRAM fast|slow FOLDER [WORD...]; FOLDER holds fake_cuda and fake_nccl"""
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import train_gpt_runner
from train_gpt_runner import Skip, run

SMALL = ["--layers", 4, "--dim", 64, "--heads", 4, "--seq", 32, "--batch", 8]
MPI_ENV = {"OMPI_MCA_btl_vader_single_copy_mechanism": "none", "OMPI_ALLOW_RUN_AS_ROOT": "1",
           "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_plm_rsh_agent": "", "OMPI_MCA_btl": "self,vader",
           "ASAN_OPTIONS": "detect_leaks=0"}  # Open MPI leaks


def launcher():
    if shutil.which("mpirun") is None:
        raise Skip("mpirun is missing")
    if not os.path.exists(os.path.join(os.path.dirname(train_gpt_runner.PROGRAM), "train_gpt_mpi.so")):
        raise Skip("haul was built without MPI")
    return "mpirun"


def ranks(n, *flags, options=(), env=None, **more):
    """The program on n ranks."""
    return run("--oversubscribe", *options, "-n", n, train_gpt_runner.PROGRAM, *flags, program=launcher(),
               env=dict(MPI_ENV, **(env or {})), **more)


def train(n, *flags, **more):
    result = ranks(n, *flags, "--quiet", "--digest", "--jsonl", "{jsonl}", **more)
    assert result.rc == 0, (n, flags, result.rc, result.err)
    return result


def one_digest_for_every_stage_and_offload():
    digests = {}
    for stage in range(4):
        for i, offload in enumerate(("none", "optimizer", "all")):
            overlap = ["--no-overlap"] if (stage + i) % 3 == 0 else []
            master = ["--master", "split"] if (stage + i) % 2 else []
            result = train(4, *SMALL, "--steps", 5, "--stage", stage, "--offload", offload, *overlap, *master)
            digests[stage, offload] = result.digest
            assert result.summary["planned"] == result.summary["peaks"], result.summary
    pulled = train(4, *SMALL, "--steps", 5, "--share", "pull")
    assert pulled.summary["comm_elems"]["all_gather"] == 0, pulled.summary
    digests["pulled"] = pulled.digest
    assert len(set(digests.values())) == 1, digests


def least_host(*flags):
    """Host bytes of a rank of two with all on nvme that can be there."""
    out = run(*flags, "--ranks", 2, "--plan-only", "--nvme-mem", "1GB", "--host-mem", 2).out
    return next(int(line.split()[-1]) for line in out.splitlines() if line.split()[:3] == ["host", "in", "all"])


def state_on_nvme_changes_no_bit_in_any_stage():
    want = train(2, *SMALL, "--steps", 5).digest
    for stage in range(4):
        for offload in ("optimizer", "all"):
            flags = [*SMALL, "--stage", stage, "--offload", offload, "--slots", 2, "--slot-bytes", "64KiB"]
            least = least_host(*flags, "--nvme", "{nvme}")
            result = train(2, *flags, "--steps", 5, "--nvme", "{nvme}", "--host-mem", 2 * least + 200000)
            assert result.digest == want, (stage, offload)
            assert result.summary["peaks"]["nvme"] > 0, (stage, offload, result.summary)
            assert result.summary["planned"] == result.summary["peaks"], result.summary


def order_layer_moves_weights_twice_whatever_the_accumulation():
    elems = {}
    for accum in (1, 2):
        summary = train(2, *SMALL, "--steps", 4, "--accum", accum).summary
        elems[accum] = summary["comm_elems"]
    assert elems[1] == elems[2], elems
    batch = train(2, *SMALL, "--steps", 4, "--accum", 2, "--order", "batch").summary["comm_elems"]
    assert 1.8 < batch["reduce_scatter"] / elems[1]["reduce_scatter"] <= 2, (batch, elems)


def rank_0_alone_speaks_and_usage_is_checked():
    result = ranks(3, *SMALL, "--batch", 9, "--steps", 2, "--digest", "--jsonl", "{jsonl}")
    assert result.rc == 0 and result.out.count("digest ") == 1, (result.rc, result.out, result.err)
    assert len(result.lines) == 3 and result.err.count("step 2/2") == 1, result.err
    result = ranks(3, *SMALL, "--steps", 2, timeout=60)
    assert "--batch 8 is not divisible by --accum 1 times 3 ranks" in result.err, result.err
    result = ranks(2, *SMALL, "--steps", 2, "--host-mem", "1MB", timeout=60)
    assert "does not fit" in result.err and "rank 1" in result.err, result.err


def over_nccl_one_digest_too():
    """Driver, cuBLAS and NCCL are fakes that run on the CPU: order and waits are tried, not speed."""
    fakes = [os.path.join(FAKES, name) for name in ("fake_cuda", "fake_nccl")]
    if not os.path.exists(os.path.join(fakes[0], "libcuda.so.1")):
        raise Skip("haul was built without CUDA")
    env = {"LD_LIBRARY_PATH": ":".join(fakes)}
    digests = {}
    for stage, offload, share in ((0, "optimizer", "auto"), (1, "all", "auto"), (2, "none", "auto"),
                                  (3, "optimizer", "auto"), (3, "all", "auto"), (3, "all", "gather"),
                                  (3, "all", "pull")):
        result = train(2, *SMALL, "--steps", 4, "--device", "cuda", "--stage", stage, "--offload", offload,
                       "--share", share, env=env)
        assert result.err == "", result.err  # where the fakes tell wrong uses
        digests[stage, offload, share] = result.digest
    assert len(set(digests.values())) == 1, digests


def losses_agree_over_rank_counts():
    for dtype, tolerance in (("bf16", 1e-3), ("fp32", 1e-5)):
        norm, loss = {}, {}
        for n in (1, 2, 4):
            result = train(n, *SMALL, "--seq", 64, "--steps", 200, "--grad-dtype", dtype)
            norm[n] = result.lines[0]["grad_norm"]
            loss[n] = sum(result.losses[-20:]) / 20
        for n in (2, 4):
            assert abs(norm[n] / norm[1] - 1) <= tolerance, (dtype, norm)
            assert abs(loss[n] / loss[1] - 1) <= 5e-3, (dtype, loss)


def children(pid):
    """Processes below pid that run the program."""
    found = []
    for name in os.listdir("/proc"):
        try:
            with open(f"/proc/{name}/stat") as f:
                words = f.read().rsplit(")", 1)[1].split()
            with open(f"/proc/{name}/cmdline") as f:
                is_ours = f.read().startswith(train_gpt_runner.PROGRAM)
        except (OSError, IndexError, ValueError):
            continue
        if is_ours and int(words[1]) == pid:
            found.append(int(name))
    return sorted(found)


KILL_TIMEOUT_S = 10  # of a wait; the processes of the others must have ended by then


def kill_one_of_four(rng, timeout_s):
    """mpirun itself would end the survivors: --enable-recovery leaves that to them."""
    with tempfile.TemporaryDirectory() as folder:
        words = [launcher(), "--oversubscribe", "--enable-recovery", "-n", "4", train_gpt_runner.PROGRAM,
                 *SMALL, "--steps", 1000000, "--quiet", "--stage", rng.randrange(4), "--save", "saved",
                 "--save-every", 20]
        job = subprocess.Popen([str(w) for w in words], cwd=folder, text=True, stderr=subprocess.PIPE,
                               stdout=subprocess.PIPE,
                               env=dict(os.environ, **MPI_ENV, TRAIN_GPT_TIMEOUT_S=str(timeout_s)))
        saved = os.path.join(folder, "saved")
        for _ in range(1200):
            if len(children(job.pid)) == 4 and os.path.exists(os.path.join(saved, "latest")):
                break
            time.sleep(0.05)
        time.sleep(rng.uniform(0, 3))
        victim = rng.choice(children(job.pid))
        os.kill(victim, signal.SIGKILL)
        killed = time.monotonic()
        try:
            _, err = job.communicate(timeout=timeout_s + 30)
        except subprocess.TimeoutExpired:
            for pid in children(job.pid):
                os.kill(pid, signal.SIGKILL)
            job.kill()
            raise
        took = time.monotonic() - killed
        said = [line for line in err.splitlines() if line.startswith("train_gpt: rank ")]
        assert len({line.split()[2] for line in said}) == 3, err
        assert took < timeout_s, took
        steps = int(re.search(r"[0-9]+", open(os.path.join(saved, "latest")).read()).group())
        resumed = train(2, *SMALL, "--resume", saved, "--steps", steps + 22)
        # the kill may have come between a complete checkpoint and the file that points to it
        assert resumed.lines[0]["step"] in (steps + 1, steps + 21), resumed.lines
        return took


def of_a_killed_rank_the_others_end_with_an_error():
    kill_one_of_four(random.Random(1), KILL_TIMEOUT_S)


def ranks_killed_at_twenty_instants_leave_no_rank_hanging():
    rng = random.Random(7)
    took = [kill_one_of_four(rng, KILL_TIMEOUT_S) for _ in range(20)]
    print(f"# the others had ended after {min(took):.1f} to {max(took):.1f} s, time-out {KILL_TIMEOUT_S} s")


def the_scaled_13b_case_stays_in_its_budgets():
    launcher()
    script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../examples/13b_scaled.sh")
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(["sh", script, train_gpt_runner.PROGRAM, folder, "3"], text=True, check=False,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=1500,
                              env=dict(os.environ, **MPI_ENV))
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [line.split() for line in done.stdout.splitlines() if line.endswith("%")]
    assert len(rows) == 3, done.stdout
    for tier, planned, measured, budget, _ in rows:
        assert planned == measured and 0 < int(measured) <= int(budget), done.stdout


FAST = [one_digest_for_every_stage_and_offload, state_on_nvme_changes_no_bit_in_any_stage,
        order_layer_moves_weights_twice_whatever_the_accumulation, rank_0_alone_speaks_and_usage_is_checked,
        of_a_killed_rank_the_others_end_with_an_error, over_nccl_one_digest_too]
SLOW = [losses_agree_over_rank_counts, ranks_killed_at_twenty_instants_leave_no_rank_hanging,
        the_scaled_13b_case_stays_in_its_budgets]

if __name__ == "__main__":
    train_gpt_runner.PROGRAM = os.path.abspath(sys.argv[1])
    which, FAKES = sys.argv.pop(2), os.path.abspath(sys.argv.pop(2))
    sys.exit(train_gpt_runner.main(FAST if which == "fast" else SLOW))
