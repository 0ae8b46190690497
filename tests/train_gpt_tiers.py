#!/usr/bin/env python3
"""train_gpt_tiers.py PROGRAM: the same bits wherever state rests, over a covering set of placements and
options, and the promised memory in a cgroup. Several minutes. With the word `eight_gigabytes` after
PROGRAM: only that test, which otherwise does not run (5 GB of memory, 9 GB of disk)."""
import itertools
import random
import sys

from train_gpt_runner import Skip, in_memory_cgroup, main, plan, run, train

# Blocks of about 50,000 parameters: 600 KB of records each, a little under six slots.
MODEL = ["--layers", 8, "--dim", 64, "--heads", 4, "--seq", 32, "--batch", 4, "--accum", 2]
NVME = ["--nvme", "{nvme}", "--slot-bytes", 128 << 10]

# Where records rest: device, host, nvme, or between them; numbers: a host budget of so many percent of
# the records above the floor, which is what must be on the host with everything else on nvme.
PAGED = ("nvme", 10, 30, 60, 90, "three tiers")
FACTORS = {
    "place": ("device", "device+host", "host") + PAGED,
    "offload": ("none", "optimizer", "all"),
    "master": ("fp32", "split"),
    "slots": (3, 4, 5, 6, 7, 8, None),
    "io": ("uring", "threads", None),
    "window": (1, 2, 3, 4, None),
    "threads": (1, 2),
    "overlap": (True, False),
    "order": ("layer", "batch"),
}


def possible(row):
    paged = row["place"] in PAGED
    return ((row["offload"] == "none") == (row["place"] == "device")
            and (row["slots"] is not None) == (row["io"] is not None) == paged
            and (row["window"] is not None) == (row["offload"] == "all"))


def pairs(row):
    return {(a, row[a], b, row[b]) for a, b in itertools.combinations(FACTORS, 2)}


def covering_rows():
    """Rows such that every pair of values that can stand together does so in one of them: greedily the
    best of some drawn rows. Always the same rows."""
    rows = [dict(zip(FACTORS, values)) for values in itertools.product(*FACTORS.values())]
    rows = [row for row in rows if possible(row)]
    left, chosen, draw = set().union(*map(pairs, rows)), [], random.Random(5)
    while left:
        a, value, b, other = min(left, key=str)
        fitting = [row for row in rows if row[a] == value and row[b] == other]
        best = max(draw.sample(fitting, min(200, len(fitting))), key=lambda r: len(pairs(r) & left))
        left -= pairs(best)
        chosen.append(best)
    return chosen


def budgets(place, flags):
    """The flags that make records rest there."""
    if place in ("device", "host"):
        return []
    resident = plan(*MODEL, *flags)
    records, made = resident["host", "records"], []
    if place in ("device+host", "three tiers"):
        made += ["--device-mem", resident["device", "in all"] + records * 3 // 10]
    if place in PAGED:
        share = {"nvme": 0, "three tiers": 40}.get(place, place)
        least = plan(*MODEL, *flags, "--host-mem", 1)["host", "in all"]
        if share > 0:  # and a page for each of two regions that begin to be used
            least += 8192 + records * share // 100
        # What holds everything needs no slots, so 90% may be enough: then a byte less than that.
        made += ["--host-mem", min(least, resident["host", "in all"] - 1)]
    return made


def expected(row):
    """The tiers in which (records, parameters) rest, exactly."""
    whole = {"device": {"device"}, "host": {"host"}, "nvme": {"nvme"},
             "device+host": {"device", "host"}, "three tiers": {"device", "host", "nvme"}}
    records = whole.get(row["place"], {"host", "nvme"})
    if row["offload"] != "all":
        return records, {"device"}
    if row["place"] == 10 and row["master"] == "split":  # 1 B a parameter and parameter slots
        return {"nvme"}, {"host", "nvme"}
    return records, {"nvme"} if row["place"] == "nvme" else {"host"} | records & {"device"}


def row_flags(row):
    flags = ["--offload", row["offload"], "--master", row["master"], "--threads", row["threads"],
             "--order", row["order"]]
    if row["place"] in PAGED:
        flags += NVME + ["--slots", row["slots"], "--io", row["io"]]
    if row["window"]:
        flags += ["--window", row["window"]]
    if not row["overlap"]:
        flags += ["--no-overlap"]
    return flags + budgets(row["place"], flags)


def resting(purpose, tiers):
    return {t: tiers[t, purpose] for t in ("device", "host", "nvme") if (t, purpose) in tiers}


def check_row(row, steps):
    """Train; the bytes in each tier are shown and are where they should be. Returns the run."""
    flags = MODEL + row_flags(row)
    tiers = plan(*flags)
    records, params = resting("records", tiers), resting("parameters", tiers)
    shown = " ".join(f"{t} {records.get(t, 0)}+{params.get(t, 0)}" for t in ("device", "host", "nvme"))
    print(f"# {shown} B of records+parameters:",
          " ".join(f"{k}={v}" for k, v in row.items() if v is not None), flush=True)
    assert (set(records), set(params)) == expected(row), (row, records, params)
    result = train(*flags, "--steps", steps, timeout=200)
    summary = result.summary
    assert summary["planned"] == summary["peaks"], (row, summary)
    moved = {lane: sum(line["lanes"][lane]["bytes"] for line in result.lines[:-1])
             for lane in ("io_read", "io_write")}
    assert all((b > 0) == (row["place"] in PAGED) for b in moved.values()), (row, moved)
    return result


def needs_io_uring():
    result = run(*MODEL, *NVME, "--io", "uring", "--host-mem", plan(*MODEL, *NVME, "--host-mem", 1)
                 ["host", "in all"], "--steps", 1, "--quiet")
    if result.rc != 0:
        raise Skip(f"io_uring: {result.err.strip()[:200]}")


def every_pair_of_placement_and_option_has_the_same_bits():
    needs_io_uring()
    rows = covering_rows()
    assert len(rows) <= 60, len(rows)
    seen = {}
    for row in rows:
        result = check_row(row, 20)
        first = seen.setdefault(row["order"], result)
        assert (result.digest, result.losses) == (first.digest, first.losses), row
    print(f"# {len(rows)} rows; digests", {order: r.digest for order, r in seen.items()}, flush=True)
    assert len({result.digest for result in seen.values()}) == 2


def a_budget_below_the_floor_is_refused():
    for offload, master in itertools.product(("optimizer", "all"), ("fp32", "split")):
        flags = MODEL + NVME + ["--offload", offload, "--master", master]
        least = plan(*flags, "--host-mem", 1)["host", "in all"]
        result = run(*flags, "--host-mem", least - 1)
        assert result.rc == 1 and "short by 1 B" in result.err, (flags, result.err)


def three_hundred_steps_have_the_same_bits_in_every_placement():
    common = {"master": "fp32", "slots": None, "io": None, "window": None, "threads": 2,
              "overlap": True, "order": "layer"}
    rows = [common | {"place": "device", "offload": "none"},
            common | {"place": "host", "offload": "all", "window": 2},
            common | {"place": "nvme", "offload": "all", "window": 3, "slots": 4, "io": "threads"},
            common | {"place": "three tiers", "offload": "all", "window": 2, "slots": 3,
                      "io": "threads", "master": "split"}]
    first, *others = [check_row(row, 300) for row in rows]
    assert sum(first.losses[-20:]) < 20 * 3.6 < 20 * first.losses[0], first.losses[-20:]
    for row, other in zip(rows[1:], others):
        assert (other.digest, other.losses) == (first.digest, first.losses), row


def in_plan_and_64_mib(flags, host_mem, most_records):
    flags = flags + ["--offload", "optimizer", "--nvme", "{nvme}", "--host-mem", host_mem]
    tiers = plan(*flags)
    records = resting("records", tiers)
    assert sum(records.values()) >= most_records and set(records) == {"host", "nvme"}, records
    memory = tiers["device", "in all"] + tiers["host", "in all"]  # the emulated device's is host's
    result, held = in_memory_cgroup(memory + (64 << 20), *flags, "--quiet", "--jsonl", "{jsonl}")
    assert result.rc == 0, (flags, result.rc, result.err)
    summary = result.summary
    print(f"# records {records}, plan {memory} B, held {held} B in a cgroup of plan + 64 MiB,",
          f"peaks {summary['peaks']}", flush=True)
    assert summary["planned"] == summary["peaks"], summary
    assert summary["peaks"] == {t: tiers[t, "in all"] for t in ("device", "host", "nvme")}, summary
    assert summary["peaks"]["host"] <= host_mem


def records_of_four_times_the_host_budget_keep_to_the_plan():
    in_plan_and_64_mib(["--layers", 28, "--dim", 384, "--heads", 8, "--seq", 32, "--batch", 1,
                        "--steps", 3, "--slot-bytes", 4 << 20], 150 << 20, 590 * 10**6)


def eight_gigabytes_of_records_train_in_two_of_host_memory():
    in_plan_and_64_mib(["--layers", 14, "--dim", 2048, "--heads", 16, "--seq", 32, "--batch", 1,
                        "--steps", 2], 2 * 10**9, 8 * 10**9)


TESTS = [every_pair_of_placement_and_option_has_the_same_bits, a_budget_below_the_floor_is_refused,
         three_hundred_steps_have_the_same_bits_in_every_placement,
         records_of_four_times_the_host_budget_keep_to_the_plan]
main(TESTS if len(sys.argv) == 2 else TESTS + [eight_gigabytes_of_records_train_in_two_of_host_memory])
