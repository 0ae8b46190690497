#!/usr/bin/env python3
"""test_haul_ckpt.py HAUL TRAIN_GPT SOURCE_ROOT: haul ckpt, and the reader in docs/checkpoint-format.md."""
import filecmp
import json
import os
import re
import struct
import subprocess
import sys
import tempfile

import tap

HAUL, TRAIN_GPT, ROOT = (os.path.abspath(p) for p in sys.argv[1:4])
SMALL = ["--layers", "2", "--dim", "32", "--heads", "2", "--seq", "32", "--batch", "4", "--quiet"]


def run(*words, rc=0):
    """rc None: any but 0."""
    done = subprocess.run([HAUL, "ckpt", *words], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          timeout=120, check=False)
    assert done.returncode == rc or (rc is None and done.returncode > 0), (words, done.returncode, done.stdout, done.stderr)
    return done


def train(*flags):
    done = subprocess.run([TRAIN_GPT, *SMALL, *flags, "--digest"], text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()[-1]


def flip(path, at):
    with open(path, "r+b") as f:
        f.seek(at)
        byte = f.read(1)[0]
        f.seek(at)
        f.write(bytes([byte ^ 0x10]))


def inspect_shows_the_tree(saves, _):
    shown = run("inspect", saves).stdout
    assert "step        6" in shown and "block.1: " in shown and "6 updates" in shown, shown
    said = json.loads(run("inspect", saves, "--json").stdout)
    assert said["step"] == 6 and said["ranks"] == 1 and said["path"].endswith("step-0000000006")
    assert [u["name"] for u in said["units"]] == ["embed", "block.0", "block.1", "final"]
    folder = said["path"]
    files = sum(os.path.getsize(os.path.join(folder, n)) for n in os.listdir(folder) if n != "manifest.json")
    assert said["bytes"] == files


def verify_checks_every_byte(saves, _):
    assert "every byte" in run("verify", saves).stdout
    folder = os.path.join(saves, "step-0000000006")
    for name in sorted(os.listdir(folder)):
        path = os.path.join(folder, name)
        size = os.path.getsize(path)
        places = range(size) if size < 64 else [0, 9, 40, 63, *range(64, size, max(size // 40, 1)), size - 1]
        for at in places:
            flip(path, at)
            assert name in run("verify", folder, rc=None).stderr, (name, at)
            flip(path, at)
    said = json.loads(run("verify", saves, "--json").stdout)
    assert said["ok"] and said["damaged"] == []


def diff_names_the_first_difference(saves, _):
    five, six = (os.path.join(saves, f"step-000000000{n}") for n in (3, 6))
    assert run("diff", six, six).stdout == "equal bits\n"
    shown = run("diff", five, six, rc=1).stdout
    assert "step: 3 and 6" in shown and re.search(r"embed\.\S+: \d+ of \d+ elements differ, the first at", shown)
    said = json.loads(run("diff", five, six, "--json", rc=1).stdout)
    assert not said["equal"] and said["differences"][0] == {"counter": "step", "a": 3, "b": 6}


def resharded_it_is_the_same_state(saves, folder):
    to = os.path.join(folder, "resharded")
    for ranks in (3, 4, 1):
        made = run("reshard", saves, "--ranks", str(ranks), "--to", to).stdout.strip()
        assert len([n for n in os.listdir(made) if n.startswith("rank-")]) == ranks
        assert run("diff", saves, made).stdout == "equal bits\n"
        run("verify", made)
    assert train("--steps", "8", "--resume", to) == train("--steps", "8")


def exported_and_imported_it_is_the_same_state(saves, folder):
    file, to = os.path.join(folder, "all.safetensors"), os.path.join(folder, "imported")
    run("export", saves, "--to", file, "--optimizer")
    with open(file, "rb") as f:
        header = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
    assert header["__metadata__"]["step"] == "6" and header["__metadata__"]["updates.final"] == "6"
    names = [n for n in header if n.startswith("final.")]
    assert any(n.endswith(".exp_avg") for n in names) and any(n.endswith(".master") for n in names), names
    made = run("import", file, "--like", os.path.join(saves, "step-0000000003"), "--to", to).stdout.strip()
    assert run("diff", saves, made).stdout == "equal bits\n"
    assert train("--steps", "8", "--resume", to) == train("--steps", "8")
    weights = os.path.join(folder, "weights.safetensors")
    run("export", saves, "--to", weights, "--dtype", "fp32")
    made = run("import", weights, "--like", saves, "--to", to).stdout.strip()
    shown = run("diff", saves, made, rc=1).stdout
    assert ": m " in shown and ": p " not in shown, "weights alone: moments are 0"


def train_kept(folder, name, *flags):
    """The same training, its records in a store that the checkpoint refers to. The checkpoint, and the store."""
    nvme, saves = os.path.join(folder, name + ".nvme"), os.path.join(folder, name)
    os.makedirs(nvme, exist_ok=True)
    train("--steps", "6", "--host-mem", "1520KB", "--slots", "2", "--slot-bytes", "64KiB", "--nvme", nvme, "--nvme-durable",
          "--save", saves, "--save-keep", "1", *flags)
    return os.path.join(saves, "step-0000000006"), os.path.join(nvme, os.listdir(nvme)[0])


def kept_records_are_read_like_others(saves, folder):
    kept, store = train_kept(folder, "kept")
    assert not any(n.startswith("records-") for n in os.listdir(kept))
    said = json.loads(run("inspect", kept, "--json").stdout)
    assert said["version"] == 2 and said["kept_bytes"] > 0 and "in the ranks' stores" in run("inspect", kept).stdout
    assert json.loads(run("inspect", saves, "--json").stdout)["kept_bytes"] == 0
    assert run("diff", saves, kept).stdout == "equal bits\n"
    assert run("diff", saves, train_kept(folder, "split", "--offload", "optimizer", "--master", "split", "--host-mem",
                                         "1420KB")[0]).stdout == "equal bits\n"
    assert "every byte" in run("verify", kept).stdout
    weights = [os.path.join(folder, name) for name in ("kept.safetensors", "held.safetensors")]
    for ckpt, path in zip((kept, saves), weights):
        run("export", ckpt, "--to", path, "--optimizer")
    assert filecmp.cmp(*weights, shallow=False)
    for name in sorted(os.listdir(kept)):
        path = os.path.join(kept, name)
        for at in range(0, os.path.getsize(path), max(os.path.getsize(path) // 40, 1)):
            flip(path, at)
            assert name in run("verify", kept, rc=None).stderr, (name, at)
            flip(path, at)
    data, found = os.path.join(store, "haul.data"), 0
    for at in range(77, os.path.getsize(data), 65536):  # every slot of every block: about half are the generation's
        flip(data, at)
        said_so = subprocess.run([HAUL, "ckpt", "verify", kept], stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, check=False)
        assert ("haul.data: bytes" in said_so.stderr) == (said_so.returncode == 1), said_so
        found += said_so.returncode == 1
        flip(data, at)
    assert found * 65536 == said["kept_bytes"], found
    made = run("reshard", kept, "--ranks", "2", "--to", os.path.join(folder, "whole")).stdout.strip()
    train("--steps", "8", "--host-mem", "1520KB", "--slots", "2", "--slot-bytes", "64KiB", "--nvme", os.path.dirname(store),
          "--nvme-durable", "--resume", kept, "--save", os.path.join(folder, "on"), "--save-keep", "1")
    assert os.path.exists(os.path.join(kept, "records-00000.bin")), "another root: it is copied before its records go"
    assert "every byte" in run("verify", kept).stdout
    path = os.path.join(kept, "records-00000.bin")
    for at in range(5, os.path.getsize(path), 65536):
        flip(path, at)
        assert "records-00000.bin" in run("verify", kept, rc=1).stderr, at
        flip(path, at)
    os.remove(path)
    assert "no more" in run("verify", kept, rc=None).stderr
    assert run("diff", saves, made).stdout == "equal bits\n"


def mistakes_are_named(saves, _):
    assert "needs a PATH" in run("inspect", rc=2).stderr
    assert "needs two PATHs" in run("diff", saves, rc=2).stderr
    assert "--ranks" in run("reshard", saves, "--to", "x", rc=2).stderr
    assert "no complete checkpoint" in run("verify", ROOT, rc=1).stderr
    assert "did you mean verify" in subprocess.run([HAUL, "ckpt", "verfy"], text=True, stderr=subprocess.PIPE,
                                                   stdout=subprocess.PIPE, check=False).stderr


def a_run_of_another_model_says_which_flags_are_needed(saves, _):
    done = subprocess.run([TRAIN_GPT, *SMALL, "--layers", "3", "--resume", saves], text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, timeout=120, check=False)
    assert done.returncode == 1 and "is of 4 units, the engine has 5; --resume needs --layers" in done.stderr, done.stderr


def the_reader_of_the_page_reads_it(saves, folder):
    with open(os.path.join(ROOT, "docs", "checkpoint-format.md")) as f:
        code = re.search(r"^```python\n(.*?)^```$", f.read(), flags=re.M | re.S).group(1)
    assert len(code.splitlines()) <= 60
    reader = os.path.join(folder, "reader.py")
    with open(reader, "w") as f:
        f.write(code)
    file = os.path.join(folder, "oracle.safetensors")
    run("export", saves, "--to", file, "--optimizer")
    with open(file, "rb") as f:
        n = struct.unpack("<Q", f.read(8))[0]
        header, data = json.loads(f.read(n)), f.read()
    kept = [train_kept(folder, "read")[0], train_kept(folder, "read_copied", "--save-keep", "2")[0],
            train_kept(folder, "read_split", "--offload", "optimizer", "--master", "split", "--host-mem", "1420KB")[0]]
    assert "records-00000.bin" in os.listdir(kept[1])
    for path in (os.path.join(saves, "step-0000000006"), os.path.join(folder, "resharded", "step-0000000006"), *kept):
        for unit, tensor in (("embed", "wte"), ("block.1", "ln1.gain"), ("final", None)):
            if tensor is None or f"{unit}.{tensor}" not in header:
                tensor = next(k for k in header if k.startswith(unit + ".") and f"{k}.master" in header)[len(unit) + 1:]
            done = subprocess.run([sys.executable, "-I", reader, path, unit, tensor], stdout=subprocess.PIPE,
                                  check=True)
            begin, end = header[f"{unit}.{tensor}.master"]["data_offsets"]
            values = struct.unpack(f"<{(end - begin) // 4}f", data[begin:end])
            lines = done.stdout.decode().split("\n")
            assert "step 6" in lines[0], lines[0]
            assert [float(x) for x in lines[1].split()] == list(values), (path, unit, tensor)


def main():
    with tempfile.TemporaryDirectory(dir=os.getcwd()) as folder:
        saves = os.path.join(folder, "saves")
        train("--steps", "6", "--save", saves, "--save-every", "3")
        tap.main((inspect_shows_the_tree, verify_checks_every_byte, diff_names_the_first_difference,
                  resharded_it_is_the_same_state, exported_and_imported_it_is_the_same_state, mistakes_are_named,
                  a_run_of_another_model_says_which_flags_are_needed,
                  kept_records_are_read_like_others, the_reader_of_the_page_reads_it), saves, folder)


main()
