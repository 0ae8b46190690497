#!/usr/bin/env python3
"""train_gpt_cli.py PROGRAM: the behaviour of train_gpt on a model small enough for every build."""
import ctypes
import json
import math
import os
import random
import resource
import signal
import subprocess
import tempfile
import time

from train_gpt_runner import PROGRAM, Skip, main, plan, run, train

SMALL = ["--layers", 2, "--dim", 32, "--heads", 2, "--seq", 32, "--batch", 4, "--steps", 8]


def help_names_every_flag():
    result = run("--help")
    assert result.rc == 0 and result.err == ""
    for flag in ("data steps layers dim heads seq batch accum order stage offload device device-mem "
                 "host-mem nvme nvme-mem io slots slot-bytes master grad-dtype dtype lr clip seed "
                 "threads link-gbps config init dump-init export save save-every save-keep resume stash stash-mem bench json jsonl trace digest quiet").split():
        assert f"--{flag} " in result.out, flag


def refuse(code, text, *flags):
    result = run(*flags, timeout=60)
    assert result.rc == code, (flags, result.rc, result.err)
    first = result.err.splitlines()[0]
    assert first.startswith("train_gpt: ") and text in first, (flags, result.err)
    assert result.out == "" and result.left == [], (flags, result.out, result.left)
    return result


def thirteen_billion_on_four_cards_is_planned_here():
    """On any machine, by the budgets given. 12 * 40 * 5120^2 weights in matrices, 2 bytes each, over 4 ranks."""
    flags = ["--model", "13b", "--ranks", "4", "--device-mem", "24GB", "--host-mem", "128GB", "--plan-only"]
    result = run(*flags, "--nvme-mem", "1TB", timeout=60)
    lines = [line.split() for line in result.out.splitlines()]
    held = {(line[0], " ".join(line[1:-1])): int(line[-1]) for line in lines if line[-1].isdigit()}
    params = held["device", "parameters"] + held["host", "parameters"]
    assert lines[0] == "each of 4 ranks, 4 on a node:".split(), result.out
    assert 1 <= params / (12 * 40 * 5120**2 * 2 / 4) < 1.002, params
    assert held["device", "in all"] <= 24e9 and held["host", "in all"] <= 32e9, held
    assert 0 < held["nvme", "in all"] <= 250e9, held
    assert run(*flags, "--stage", "2", "--offload", "optimizer", timeout=60).rc == 1, "26e9 of parameters"


def usage_errors_are_one_line_and_exit_2():
    for text, *flags in (
            ["nearest is --steps", "--stpes", "3"], ["no flag '--rnaks'", "--rnaks", "2"],
            ["--ranks plans only; to train", "--ranks", "2"],
            ["is not divisible by --accum 1 times 3 ranks", "--ranks", "3", "--plan-only"],
            ["needs a value", "--steps"], ["not a flag", "train"], ["--layers", "--layers", "0"],
            ["--heads", "--heads", "0"], ["--steps", "--steps", "0"], ["--accum", "--accum", "0"],
            ["not divisible by --heads", "--dim", "130"], ["by --heads", "--dim", "7", "--heads", "8"],
            ["not divisible by --accum", "--accum", "3"], ["--layers", "--layers", "1e18"],
            ["--dim", "--dim", "-4"], ["2^31 tokens", "--batch", "1e6", "--seq", "1e6"],
            ["--lr", "--lr", "nan"], ["--lr", "--lr=-1"], ["--clip", "--clip", "1x"],
            ["layer, batch", "--order", "depth"], ["not a size", "--device-mem", "12XB"],
            ["--host-mem", "--host-mem", "0"], ["takes no value", "--digest=1"],
            ["--offload all", "--window", "2", "--offload", "none"],
            ["FP32", "--dtype", "fp32", "--grad-dtype", "bf16"],
            ["FP32", "--dtype", "fp32", "--grad-dtype", "fp16"],
            ["--dtype bf16", "--master", "split", "--dtype", "fp16"],
            ["--dtype bf16", "--master", "split", "--dtype", "fp32"],
            ["fp32, split", "--master", "half"], ["auto, uring, threads", "--io", "mmap"],
            ["need --nvme", "--nvme-mem", "1GB"], ["need --nvme", "--io", "threads"],
            ["need --nvme", "--slots", "4"], ["need --nvme", "--slot-bytes", "1MiB"],
            ["--slots", "--nvme", ".", "--slots", "1"], ["--nvme-mem", "--nvme", ".", "--nvme-mem", "0"],
            ["comma between", "--nvme", ""], ["comma between", "--nvme", ".,"],
            ["at most 16", "--nvme", ",".join("." * 17)],
            ["--nvme needs --offload", "--nvme", ".", "--offload", "none"],
            ["needs --stash", "--stash-mem", "1GB", "--nvme", "."],
            ["--json needs --bench", "--json"], ["every --offload", "--bench", "--offload", "none"],
            ["own figures", "--bench", "--digest"], ["own figures", "--bench", "--no-overlap"],
            ["at most 1000", "--bench", "--steps", "1001"],
            ["needs --nvme", "--stash", "--stash-mem", "1GB"],
            ["--stash-mem", "--stash", "--nvme", ".", "--stash-mem", "0"],
            ["--lr", "--lr", "1e39"], ["--lr", "--lr", "3.5e38"],
            ["--jsonl and --trace", "--jsonl", "new", "--trace", "new"],
            ["--jsonl and --trace", "--jsonl", "/tmp/../tmp/new.x", "--trace", "/tmp//new.x"],
            ["--jsonl and --trace", "--jsonl", long_file(), "--trace", long_file()],
            ["--plan-only", "--plan-only", "--digest"], ["--plan-only", "--plan-only", "--trace", "f"],
            ["2^63 bytes", "--dim", 65536, "--heads", 1, "--layers", 4096, "--no-recompute",
             "--seq", 2**20, "--batch", 2**20, "--accum", 2**20, "--data", long_file()]):
        assert len(refuse(2, text, *flags).err.splitlines()) == 1, flags


def long_file():
    """A sparse file of 2 MiB that outlives the call: 1 MiB sequences fit in."""
    if not hasattr(long_file, "file"):
        long_file.file = tempfile.NamedTemporaryFile()
        long_file.file.truncate(2 << 20)
    return long_file.file.name


def data_that_cannot_serve_is_named():
    with tempfile.TemporaryDirectory() as folder:
        empty, short = os.path.join(folder, "empty"), os.path.join(folder, "short")
        for path, nbytes in ((empty, 0), (short, 32)):
            with open(path, "wb") as f:
                f.write(b"x" * nbytes)
        for path, text in ((empty, "0 bytes"), (short, "32 bytes"), (folder, "not a regular file"),
                           (os.path.join(folder, "none"), "No such file")):
            result = refuse(1, text, "--data", path, "--seq", 32)
            assert len(result.err.splitlines()) == 1 and path in result.err
        with open(short, "ab") as f:
            f.write(b"y")
        train(*SMALL, "--data", short)  # just long enough: one sequence and its last target


def the_cuda_device_is_refused_where_there_is_none():
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        pass
    else:
        raise Skip("a machine without a CUDA driver")
    refuse(3, "--device host", "--device", "cuda")


def a_jsonl_file_that_cannot_be_written_is_named():
    refuse(1, "/nonexistent/file", *SMALL, "--jsonl", "/nonexistent/file")


def a_full_disk_stops_at_the_step_that_it_has_no_room_for():
    endless = SMALL + ["--steps", 1000000]
    result = refuse(1, "--jsonl /dev/full: the line of step 1 ", *endless, "--jsonl", "/dev/full")
    assert "No space left" in result.err and len(result.err.splitlines()) == 1, result.err

    def cap():  # a few lines
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4000, 4000))
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "lines")
        result = run(*endless, "--jsonl", path, preexec=cap, timeout=60)
        with open(path) as f:
            whole = f.read().split("\n")[:-1]
    last = result.err.splitlines()[-1]
    assert result.rc == 1 and result.out == "", (result.rc, result.out)
    assert f"--jsonl {path}: the line of step {len(whole) + 1} " in last, (last, len(whole))
    assert len(whole) > 1 and "File too large" in last, last
    assert [json.loads(line)["step"] for line in whole] == list(range(1, len(whole) + 1))


def help_that_is_lost_is_a_failure():
    with open("/dev/full", "w") as full:
        done = subprocess.run([PROGRAM, "--help"], stdout=full, stderr=subprocess.PIPE, text=True,
                              check=False)
    assert done.returncode == 1 and "stdout: No space left" in done.stderr, done


def a_trace_that_cannot_be_written_is_named_before_training():
    for path, text in (("/nonexistent/file", "No such file"), (".", "directory"),
                       ("/dev/full", "No space left"), ("/dev/stdout", "seek")):
        result = refuse(1, text, *SMALL, "--trace", path)
        assert f"--trace {path}: " in result.err and len(result.err.splitlines()) == 1, result.err


def json_lines_keep_the_contract():
    result = train(*SMALL, "--accum", 2)
    steps, summary = result.lines[:-1], result.summary
    assert [s["step"] for s in steps] == list(range(1, 9))
    for s in steps:
        assert set(s) == {"step", "loss", "grad_norm", "lr", "clip", "skipped", "ms", "tokens_per_s",
                          "weight_passes", "lanes", "held"}
        assert set(s["lanes"]) == {"compute", "h2d", "d2h", "io_read", "io_write", "optim", "comm"}
        for lane in s["lanes"].values():
            assert set(lane) == {"busy_ms", "exposed_ms", "bytes"}
        assert s["skipped"] is False and 0 < s["clip"] <= 1 and s["grad_norm"] > 0
        assert math.isclose(s["lr"], 0.002 * s["step"] / 20, rel_tol=1e-6)
        assert math.isclose(s["tokens_per_s"], 4 * 32 * 1000 / s["ms"], rel_tol=1e-6)
        # forward and backward, the tied embedding twice in each
        embed, total = 256 * 32 + 32 * 32, 256 * 32 + 32 * 32 + 2 * (12 * 32**2 + 13 * 32) + 2 * 32
        assert math.isclose(s["weight_passes"], 2 * (total + embed) / total, rel_tol=1e-6)
    assert set(summary) == {"summary", "planned", "peaks", "comm_elems", "digest", "budgets", "ledger", "run", "machine"}
    assert summary["budgets"] == {"device": None, "host": None, "nvme": None}
    for tier, planned in summary["planned"].items():
        assert planned == sum(line["bytes"] for line in summary["ledger"] if line["tier"] == tier)
    assert summary["run"]["batch"] == 4 and summary["run"]["accum"] == 2 and summary["run"]["ranks"] == 1
    assert "emulated" in summary["machine"]["device"] and summary["machine"]["cores"] >= 1
    assert set(summary["planned"]) == set(summary["peaks"]) == {"device", "host", "nvme"}
    assert summary["comm_elems"] == {"all_gather": 0, "reduce_scatter": 0, "all_reduce": 0}
    assert summary["digest"] == result.digest


def before_any_step_every_byte_is_as_likely():
    """On uniform bytes, whose entropy is ln 256 whatever the project's own text is."""
    source = random.Random(1)
    with tempfile.NamedTemporaryFile(suffix=".bin") as data:
        data.write(bytes(source.randrange(256) for _ in range(65536)))
        data.flush()
        for seed in (1, 2, 3):
            losses = train(*SMALL, "--steps", 1, "--seed", seed, "--data", data.name).losses
            assert abs(losses[0] - math.log(256)) < 0.1, losses


def the_same_digest_and_losses_wherever_state_lives():
    first = train(*SMALL)
    for flags, env in (([], {}), (["--offload", "none"], {}), (["--offload", "optimizer"], {}),
                       (["--threads", 1], {}), (["--threads", 2], {}), (["--window", 3], {}),
                       (["--window", 1], {}), (["--master", "split"], {}), (["--no-overlap"], {}),
                       (["--no-recompute"], {}),
                       (["--stage", 0], {}), (["--link-gbps", 0.5], {}),
                       ([], {"HAUL_CPU_MASK": "c"}), ([], {"HAUL_CPU_MASK": "avx2"}),
                       ([], {"HAUL_CPU_MASK": "avx512"}), ([], {"OMP_NUM_THREADS": "1"})):
        other = train(*SMALL, *flags, env=env)
        assert other.digest == first.digest and other.losses == first.losses, (flags, env)
    for flags in (["--seed", 2], ["--clip", 0.01], ["--lr", 0.001], ["--steps", 7]):
        assert train(*SMALL, *flags).digest != first.digest, flags


# Enough records that slots take less than they do.
PAGED = SMALL + ["--layers", 8, "--nvme", "{nvme}", "--slot-bytes", 65536]


def floor(*flags):
    """The least host budget: everything that may go to nvme rests there."""
    return plan(*PAGED, *flags, "--host-mem", 1)["host", "in all"]


def the_same_digest_with_state_on_nvme_and_none_left_behind():
    first = train(*SMALL, "--layers", 8)
    for flags in (["--offload", "optimizer"], ["--offload", "all"], ["--master", "split"],
                  ["--io", "threads", "--slots", 2], ["--slot-bytes", 131072, "--window", 4],
                  ["--no-overlap"]):
        other = train(*PAGED, *flags, "--host-mem", floor(*flags))
        assert other.digest == first.digest and other.losses == first.losses, flags
        assert other.summary["peaks"]["nvme"] > 0, (flags, other.summary)
        for lane in ("io_read", "io_write"):
            assert all(line["lanes"][lane]["bytes"] > 0 for line in other.lines[1:-1]), (flags, lane)
            assert all(line["lanes"][lane]["bytes"] == 0 for line in first.lines[:-1]), lane
    with tempfile.TemporaryDirectory() as a, tempfile.TemporaryDirectory() as b:
        flags = PAGED + ["--nvme", f"{a},{b}", "--host-mem", floor()]
        assert train(*flags).digest == first.digest
        shown = run(*flags).out
        assert "io_read" in shown and "io_write" in shown and "\nnvme " in shown, shown
        assert os.listdir(a) == os.listdir(b) == []


# A block's input has 64 KiB, a block of the drive.
STASH = SMALL + ["--layers", 6, "--batch", 16, "--stash"]
ENTRY = 16 * 32 * 32 * 4


def the_same_digest_with_inputs_of_blocks_on_the_stash():
    for flags in ([], ["--accum", 4], ["--accum", 4, "--order", "batch"], ["--no-recompute"],
                  ["--layers", 1], ["--offload", "none"], ["--dtype", "fp32"],
                  ["--link-gbps", 0.05, "--accum", 2]):
        plain, stashed = train(*STASH[:-1], *flags), train(*STASH, *flags)
        assert stashed.digest == plain.digest and stashed.losses == plain.losses, flags
        layers = 1 if "--layers" in flags else 6
        for a, b in zip(plain.lines[:-1], stashed.lines[:-1]):
            more = b["lanes"]["d2h"]["bytes"] - a["lanes"]["d2h"]["bytes"]
            assert more == layers * ENTRY, (flags, more)


def the_same_digest_with_the_stash_on_nvme():
    plain = train(*STASH[:-1])
    for flags in (["--stash-mem", 3 * ENTRY], ["--stash-mem", 1, "--io", "threads"],
                  ["--stash-mem", 4 * ENTRY, "--offload", "none"],
                  ["--stash-mem", 1, "--accum", 2, "--order", "batch"],
                  ["--stash-mem", 3 * ENTRY, "--host-mem", 2200000, "--slot-bytes", 65536]):
        other = train(*STASH, "--nvme", "{nvme}", *flags)
        same = train(*STASH[:-1], *flags[2:]) if "--accum" in flags else plain
        assert other.digest == same.digest and other.losses == same.losses, flags
        for lane in ("io_read", "io_write"):
            assert all(line["lanes"][lane]["bytes"] >= ENTRY for line in other.lines[:-1]), flags


def the_stash_is_in_the_plan():
    plain, stashed = plan(*STASH[:-1]), plan(*STASH)
    # 3 boundaries instead of 6 + 2
    assert plain["device", "trainer"] - stashed["device", "trainer"] == 5 * ENTRY, stashed
    assert stashed["host", "stash"] == 6 * ENTRY and ("nvme", "stash") not in stashed, stashed
    assert not any(purpose == "stash" for _, purpose in plain), plain
    for given, slots in ((1, 3), (4 * ENTRY, 4), (5 * ENTRY - 1, 4), (6 * ENTRY, 6)):
        tiers = plan(*STASH, "--nvme", "{nvme}", "--stash-mem", given)
        assert tiers["host", "stash"] == slots * ENTRY, (given, tiers)
        assert tiers.get(("nvme", "stash"), 0) == (6 * ENTRY if slots < 6 else 0), (given, tiers)
    flags = STASH + ["--nvme", "{nvme}", "--stash-mem", 1]
    room = plan(*flags)["nvme", "in all"]
    train(*flags, "--nvme-mem", room)
    assert "nvme needs" in refuse(1, "does not fit", *flags, "--nvme-mem", room - 1).err


def load_trace(path):
    """The events of a trace: spans by lane, values by counter."""
    with open(path) as f:
        events = json.load(f)
    name = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert sorted(name.values()) == sorted(LANES) and len(name) == len(LANES), name
    spans, counters = {lane: [] for lane in LANES}, {}
    for e in events:
        assert e["ph"] in "MXC" and e.get("ts", 0) >= 0, e
        if e["ph"] == "X":
            spans[name[e["tid"]]].append(e)
        elif e["ph"] == "C":
            counters.setdefault(e["name"], []).append(e["args"]["value"])
    return spans, counters


LANES = ["compute", "h2d", "d2h", "io_read", "io_write", "optim", "comm"]


def a_trace_has_a_track_per_lane_and_the_counters():
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "trace.json")
        for flags, io in ((PAGED + ["--host-mem", floor(), "--slots", 3], True), (SMALL, False)):
            result = train(*flags, "--trace", path)
            assert result.digest == train(*flags).digest, flags
            spans, counters = load_trace(path)
            for lane in LANES:
                busy = lane != "comm" and (io or not lane.startswith("io"))
                moved = sum(line["lanes"][lane]["bytes"] for line in result.lines[:-1])
                traced = sum(e["args"]["bytes"] for e in spans[lane])
                assert busy == (len(spans[lane]) > 0), (flags, lane)
                assert lane != "d2h" or moved == traced, (flags, moved, traced)
                # what came before the first step is in the report alone, what came after the last is not
                assert moved - 6 * 65536 <= traced, (flags, lane, moved, traced)
                assert {e["args"]["step"] for e in spans[lane]} <= set(range(1, 10)), (flags, lane)
                ends = 0
                for e in sorted(spans[lane], key=lambda e: (e["ts"], e["ts"] + e["dur"])):
                    assert e["dur"] >= 0 and e["ts"] > ends - 0.002, (flags, lane, e, ends)
                    ends = e["ts"] + e["dur"]
            units = {"embed", "final"} | {f"block.{b}" for b in range(8 if io else 2)}
            assert {e["name"] for e in spans["optim"]} == units, flags
            assert len(spans["optim"]) == 8 * len(units), flags
            assert set(counters) == {"slots", "queue depth", "bytes in flight"}, counters.keys()
            assert max(counters["queue depth"]) > 0 == counters["queue depth"][-1], flags
            assert max(counters["slots"]) == (3 if io else 0), flags
            assert (0 < max(counters["bytes in flight"]) <= 3 * 65536) if io else (
                set(counters["bytes in flight"]) == {0}), flags


def device_room_left_over_takes_units_back():
    for offload in ("optimizer", "all"):
        least = plan(*SMALL, "--offload", offload)["device", "in all"]
        flags = ["--offload", offload, "--device-mem", least + 250000]
        tiers = plan(*SMALL, *flags)
        assert tiers["device", "records"] > 0 < tiers["host", "records"], tiers
        assert train(*SMALL, *flags).digest == train(*SMALL).digest


def the_same_digest_in_fp32_and_fp16_and_with_other_gradients():
    for flags in (["--dtype", "fp32"], ["--grad-dtype", "fp32"], ["--dtype", "fp16"],
                  ["--grad-dtype", "fp16"], ["--dtype", "fp16", "--grad-dtype", "bf16"]):
        digests = {train(*SMALL, *flags, "--offload", offload, "--accum", 2, "--order", "batch").digest
                   for offload in ("none", "optimizer", "all")}
        assert len(digests) == 1, (flags, digests)


def orders_move_different_bytes_and_agree():
    layer = train(*SMALL, "--accum", 4, "--order", "layer")
    batch = train(*SMALL, "--accum", 4, "--order", "batch")
    for a, b in zip(layer.losses, batch.losses):
        assert abs(a - b) < 5e-3 * a
    passes = [r.lines[0]["weight_passes"] for r in (layer, batch)]
    assert math.isclose(4 * passes[0], passes[1], rel_tol=1e-6)


def peaks_are_the_plan_to_the_byte():
    for flags in ([], ["--offload", "none"], ["--offload", "optimizer"], ["--no-recompute"],
                  ["--accum", 4, "--order", "batch"], ["--accum", 4, "--no-recompute"],
                  ["--dtype", "fp32"], ["--window", 4], ["--dtype", "fp16"],
                  PAGED + ["--host-mem", floor()],
                  PAGED + ["--host-mem", floor() + 600000, "--master", "split"],
                  ["--stash"], ["--stash", "--accum", 4, "--order", "batch"],
                  PAGED + ["--host-mem", 2200000, "--stash", "--stash-mem", 1]):
        summary = train(*SMALL, *flags).summary
        assert summary["planned"] == summary["peaks"], (flags, summary)
        plan = {line.split()[0]: int(line.split()[-1])
                for line in run(*SMALL, *flags, "--plan-only").out.splitlines() if "in all" in line}
        assert plan == {k: v for k, v in summary["planned"].items() if v > 0}, (flags, plan)


def a_budget_of_the_plan_is_enough_and_one_byte_less_is_not():
    planned = train(*SMALL).summary["planned"]
    for flag, tier in (("--device-mem", "device"), ("--host-mem", "host")):
        train(*SMALL, flag, planned[tier])
        result = refuse(1, "does not fit", *SMALL, flag, planned[tier] - 1)
        assert "short by 1 B" in result.err, result.err
        result = run(*SMALL, flag, planned[tier] - 1, "--plan-only")
        assert result.rc == 1 and "short by 1 bytes" in result.err, result.err
    least = floor()
    room = plan(*PAGED, "--host-mem", least)["nvme", "in all"]
    train(*PAGED, "--host-mem", least, "--nvme-mem", room)
    for flags, tier in ((["--host-mem", least - 1], "host"),
                        (["--host-mem", least, "--nvme-mem", room - 1], "nvme")):
        assert f"{tier} needs" in refuse(1, "does not fit", *PAGED, *flags).err
        result = run(*PAGED, *flags, "--plan-only")
        assert result.rc == 1 and f"short by 1 bytes of {tier}" in result.err, result.err
    refuse(1, "/nonexistent/folder", *SMALL, "--nvme", "/nonexistent/folder")


def an_address_space_below_the_plan_is_refused():
    big = ["--layers", 4, "--dim", 1024, "--heads", 4, "--seq", 32, "--batch", 1, "--steps", 1]
    limit = 800 << 20  # what the program itself maps, and not 50 M parameters of 16 bytes

    def cap():
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    refuse_under(cap, big)


def refuse_under(cap, flags):
    result = run(*flags, preexec=cap, timeout=60)
    if "Sanitizer" in result.err:
        raise Skip("a build without the address sanitizer, whose shadow takes the address space")
    assert result.rc == 1 and "does not fit" in result.err and "short by" in result.err, (
        result.rc, result.err)
    assert "records" in result.err and result.out == "", result.err


def a_gradient_that_is_not_finite_skips_the_step_and_says_so():
    overflow = ["--layers", 1, "--dim", 32, "--batch", 2, "--lr", 1e36, "--digest"]
    two, four = (run(*overflow, "--steps", n, "--jsonl", "{jsonl}") for n in (2, 4))
    assert [line["skipped"] for line in four.lines[:-1]] == [False, True, True, True]
    assert four.lines[2]["grad_norm"] is None and four.lines[2]["clip"] == 0
    assert "skipped: gradient not finite" in four.err and "3 steps" in four.out, four.out
    assert two.digest == four.digest  # steps 3 and 4, like 2, changed nothing


def fp16_gradients_come_with_a_loss_scale():
    result = run(*SMALL, "--dtype", "fp16")
    scale = [line.split()[2] for line in result.out.splitlines() if line.startswith("loss scale")]
    assert len(scale) == 1 and float(scale[0]) >= 1, result.out
    assert "loss scale" not in run(*SMALL).out
    # the norm is that of the unscaled gradient
    half, brain = (train(*SMALL, "--dtype", dtype) for dtype in ("fp16", "bf16"))
    assert math.isclose(half.lines[0]["grad_norm"], brain.lines[0]["grad_norm"], rel_tol=0.01)


def ctrl_c_finishes_the_step_and_closes():
    with tempfile.TemporaryDirectory() as folder:
        trace = os.path.join(folder, "trace.json")
        with subprocess.Popen([PROGRAM, "--layers", "2", "--dim", "32", "--heads", "2", "--seq", "32",
                               "--steps", "1000000", "--digest", "--trace", trace], cwd=folder, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
            for _ in range(3):
                assert (line := child.stderr.readline()).startswith("step "), line
            child.send_signal(signal.SIGINT)
            # The same reader to the end: it may hold lines that it took ahead. stdout fits its pipe.
            lines = [line, *child.stderr]
            out = child.stdout.read()
            child.wait(timeout=60)
        spans, _ = load_trace(trace)
    assert child.returncode == 0, lines
    assert "planned" in out and out.splitlines()[-1].startswith("digest "), out
    last = int(lines[-1].split("/")[0].split()[1])
    assert f"steps      {last} in " in out, (last, out)
    assert max(e["args"]["step"] for e in spans["d2h"]) == last, last


def a_second_ctrl_c_ends_at_once():
    slow = ["--layers", "8", "--dim", "512", "--heads", "4", "--seq", "512", "--batch", "16"]
    with tempfile.NamedTemporaryFile() as trace:
        with subprocess.Popen([PROGRAM, *slow, "--quiet", "--trace", trace.name],
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
            time.sleep(2)  # inside the first steps, which take seconds each
            child.send_signal(signal.SIGINT)
            time.sleep(0.2)
            child.send_signal(signal.SIGINT)
            child.communicate(timeout=5)
        if os.path.getsize(trace.name) > 0:
            load_trace(trace.name)
    assert child.returncode in (-signal.SIGINT, 0), child.returncode


def bench_puts_each_offload_beside_the_device():
    result = run(*SMALL[:-2], "--bench", "--steps", 2, "--json")
    assert result.rc == 0 and result.err == "", (result.rc, result.err)
    found = json.loads(result.out)
    rows = {row["offload"]: row for row in found["rows"]}
    assert found["emulated"] is True and found["steps"] == 2 and set(rows) == {"none", "optimizer", "all"}
    assert rows["none"]["peaks"]["host"] < rows["optimizer"]["peaks"]["host"] < rows["all"]["peaks"]["host"]
    assert rows["none"]["peaks"]["device"] > rows["optimizer"]["peaks"]["device"] > rows["all"]["peaks"]["device"]
    assert found["digest"] == train(*SMALL[:-2], "--steps", 6).digest
    table = run(*SMALL[:-2], "--bench", "--steps", 2)
    assert table.rc == 0 and "emulated" in table.out and table.err == "", table.err


def quiet_prints_nothing_but_the_digest():
    result = run(*SMALL, "--quiet", "--digest")
    assert result.rc == 0 and result.err == "" and result.out == f"digest {result.digest}\n"
    result = run(*SMALL, "--quiet")
    assert result.rc == 0 and result.err == "" and result.out == ""


main([help_names_every_flag, help_that_is_lost_is_a_failure,
      a_full_disk_stops_at_the_step_that_it_has_no_room_for, usage_errors_are_one_line_and_exit_2, data_that_cannot_serve_is_named,
      the_cuda_device_is_refused_where_there_is_none, a_jsonl_file_that_cannot_be_written_is_named,
      a_trace_that_cannot_be_written_is_named_before_training, json_lines_keep_the_contract,
      before_any_step_every_byte_is_as_likely,
      the_same_digest_and_losses_wherever_state_lives,
      the_same_digest_with_state_on_nvme_and_none_left_behind,
      the_same_digest_with_inputs_of_blocks_on_the_stash, the_same_digest_with_the_stash_on_nvme,
      the_stash_is_in_the_plan, a_trace_has_a_track_per_lane_and_the_counters,
      device_room_left_over_takes_units_back,
      the_same_digest_in_fp32_and_fp16_and_with_other_gradients,
      fp16_gradients_come_with_a_loss_scale, orders_move_different_bytes_and_agree,
      peaks_are_the_plan_to_the_byte, thirteen_billion_on_four_cards_is_planned_here, a_budget_of_the_plan_is_enough_and_one_byte_less_is_not,
      an_address_space_below_the_plan_is_refused,
      a_gradient_that_is_not_finite_skips_the_step_and_says_so, ctrl_c_finishes_the_step_and_closes,
      a_second_ctrl_c_ends_at_once, bench_puts_each_offload_beside_the_device, quiet_prints_nothing_but_the_digest])
