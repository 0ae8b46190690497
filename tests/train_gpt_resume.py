#!/usr/bin/env python3
"""train_gpt_resume.py PROGRAM: runs that end and go on: resumed, signalled, killed, on a full disk.

KILLS and STEPS in the environment: how often the killed run is killed, how long resumed runs are."""
import contextlib
import fcntl
import os
import random
import re
import shutil
import signal
import struct
import subprocess
import tempfile
import time

from train_gpt_runner import PROGRAM, Skip, main, run, train

SMALL = ["--layers", 2, "--dim", 32, "--heads", 2, "--seq", 32, "--batch", 4]
KILLS = int(os.environ.get("KILLS", "10"))
STEPS = int(os.environ.get("STEPS", "40"))


def folder():
    return tempfile.TemporaryDirectory(prefix="haul-resume-", dir=os.getcwd())


def resumed_run_has_the_bits_of_a_straight_one():
    mixes = {
        "device": ["--offload", "none"],
        "optimizer": ["--offload", "optimizer", "--master", "split"],
        "all": ["--offload", "all", "--no-overlap"],
        "nvme": ["--master", "split", "--host-mem", "1650KB", "--nvme", "{nvme}", "--slot-bytes", "64KiB"],
        "batches": ["--accum", 2, "--order", "batch", "--stash"],
        "fp32": ["--dtype", "fp32"],
    }
    straight = train(*SMALL, "--steps", STEPS)
    for name, flags in mixes.items():
        if name in ("batches", "fp32"):
            expected = train(*SMALL, *flags, "--steps", STEPS)
        else:
            expected = straight
        with folder() as root:
            first = train(*SMALL, *flags, "--steps", STEPS // 2 + 3, "--save", root, "--save-every", STEPS // 4)
            second = train(*SMALL, *flags, "--steps", STEPS, "--resume", root)
        assert second.digest == expected.digest, name
        assert first.losses + second.losses == expected.losses, name
        assert [line["step"] for line in second.lines[:-1]] == list(range(STEPS // 2 + 4, STEPS + 1)), name


def skipped_steps_and_loss_scale_go_on():
    """At this loss scale the first steps overflow: skipped ones lie on both sides of the first save."""
    with folder() as root:
        config, saves = os.path.join(root, "config.json"), os.path.join(root, "saves")
        with open(config, "w") as f:
            f.write('{"fp16": {"enabled": true, "initial_scale_power": 24, "loss_scale_window": 4}}')
        flags = ["--config", config, *SMALL]
        straight = train(*flags, "--steps", 30)
        skipped = [line["step"] for line in straight.lines[:-1] if line["skipped"]]
        assert skipped[:2] == [1, 2] and skipped[-1] > 15, skipped
        for at in (1, 15):
            first = train(*flags, "--steps", at, "--save", saves)
            second = train(*flags, "--steps", 30, "--resume", saves)
            assert second.digest == straight.digest, at
            assert first.losses + second.losses == straight.losses, at


def tiers_and_form_may_change_in_between():
    straight = train(*SMALL, "--steps", 30)
    with folder() as root:
        train(*SMALL, "--offload", "none", "--steps", 10, "--save", root)
        train(*SMALL, "--host-mem", "1650KB", "--nvme", "{nvme}", "--slot-bytes", "64KiB", "--master", "split",
              "--steps", 20, "--save", root, "--resume", root)
        last = train(*SMALL, "--offload", "optimizer", "--steps", 30, "--resume", root)
    assert last.digest == straight.digest


def one_checkpoint_can_be_named_and_older_ones_go():
    with folder() as root:
        train(*SMALL, "--steps", 20, "--save", root, "--save-every", 5, "--save-keep", 3)
        names = sorted(n for n in os.listdir(root) if n.startswith("step-"))
        assert [int(n[5:]) for n in names] == [10, 15, 20], names
        with open(os.path.join(root, "latest")) as f:
            assert f.read() == names[-1] + "\n"
        early = train(*SMALL, "--steps", 20, "--resume", os.path.join(root, names[0]))
        assert early.lines[0]["step"] == 11
        assert early.digest == train(*SMALL, "--steps", 20).digest


def a_damaged_newest_is_passed_over_by_name():
    with folder() as root:
        train(*SMALL, "--steps", 10, "--save", root, "--save-every", 5)
        path = os.path.join(root, "step-0000000010", "rank-00000.bin")
        with open(path, "r+b") as f:
            f.seek(10000)
            byte = f.read(1)
            f.seek(10000)
            f.write(bytes([byte[0] ^ 1]))
        result = run(*SMALL, "--steps", 12, "--resume", root)
        assert result.rc == 0 and "step-0000000010" in result.err and "damaged" in result.err, result.err
        assert re.search(r"resumed \S+/step-0000000005: step 5", result.err), result.err
        named = run(*SMALL, "--steps", 12, "--resume", os.path.dirname(path))
        assert named.rc == 1 and "rank-00000.bin" in named.err, named.err


def what_cannot_be_resumed_says_why():
    with folder() as root:
        empty = run(*SMALL, "--resume", root)
        assert empty.rc == 1 and "no complete checkpoint" in empty.err, empty.err
        missing = run(*SMALL, "--resume", os.path.join(root, "none"))
        assert missing.rc == 1 and "No such file" in missing.err, missing.err
        train(*SMALL, "--steps", 3, "--save", root)
        other = run("--layers", 2, "--dim", 64, "--heads", 2, "--seq", 32, "--batch", 4, "--resume", root)
        assert other.rc == 1 and "unit embed, tensor" in other.err, other.err
        seed = run(*SMALL, "--seed", 9, "--steps", 5, "--resume", root, "--digest")
        assert seed.rc == 0 and "goes on with the seed of the checkpoint, 1" in seed.err, seed.err
        assert seed.digest == train(*SMALL, "--steps", 5).digest


def start(*flags, err):
    return subprocess.Popen([PROGRAM] + [str(f) for f in flags], stderr=err, stdout=subprocess.PIPE, text=True)


def signalled_while_training(sig, root, log):
    """The exit code, and what it wrote on stderr."""
    with open(log, "w") as err:
        child = start(*SMALL, "--steps", 1000000, "--save", root, err=err)
    while "step" not in open(log).read():
        time.sleep(0.01)
    time.sleep(0.3)
    child.send_signal(sig)
    out, _ = child.communicate(timeout=60)
    return child.returncode, open(log).read(), out


def sigterm_and_ctrl_c_save_and_end_well():
    for sig in (signal.SIGTERM, signal.SIGINT):
        with folder() as root:
            rc, err, out = signalled_while_training(sig, root, os.path.join(root, "log"))
            assert rc == 0 and "saved" in err and "loss" in out, (sig, rc, err)
            at = int(re.findall(r"saved \S+: step (\d+)", err)[-1])
            done = [int(s) for s in re.findall(r"^step +(\d+)/", err, flags=re.M)]
            assert at == done[-1], "the step under way is the last, and saved"
            more = train(*SMALL, "--steps", at + 5, "--resume", root)
            assert more.digest == train(*SMALL, "--steps", at + 5).digest


def a_second_ctrl_c_ends_at_once():
    with folder() as root:
        log = os.path.join(root, "log")
        with open(log, "w") as err: # one step takes many seconds
            child = start("--layers", 4, "--dim", 512, "--heads", 8, "--seq", 256, "--batch", 32, "--steps", 5,
                          "--save", root, err=err)
        time.sleep(1.5)
        child.send_signal(signal.SIGINT)
        time.sleep(0.2)
        begin = time.time()
        child.send_signal(signal.SIGINT)
        child.communicate(timeout=60)
        assert child.returncode == -signal.SIGINT and time.time() - begin < 2
        assert not any(n.startswith("step-") for n in os.listdir(root))


def durable(root, keep):
    """Records that stay on nvme, below the root."""
    nvme = os.path.join(root, "nvme")
    os.makedirs(nvme, exist_ok=True)
    return ["--host-mem", "1520KB", "--slots", 2, "--slot-bytes", "64KiB", "--nvme", nvme, "--nvme-durable",
            "--save-keep", keep]


def killed_at_any_instant_it_goes_on_to_the_same_bits():
    kill_often(lambda root: ["--save-keep", 2])


def killed_with_records_that_stay_on_nvme_it_goes_on_to_the_same_bits():
    """keep 1: what a checkpoint refers to is nowhere else. keep 2: it is copied when the next one is complete."""
    for keep in (1, 2):
        kill_often(lambda root: durable(root, keep))


def kill_often(flags_of):
    dice, acknowledged, kills, while_saving, longest = random.Random(7), 0, 0, 0, 1.2
    with folder() as root:
        flags = [*SMALL, "--save-every", 3, *flags_of(root)]
        log, saves = os.path.join(root, "log"), os.path.join(root, "saves")
        while kills < KILLS:
            resume = ["--resume", saves] if acknowledged else []
            with open(log, "w") as err:
                child = start(*flags, "--steps", 1000000, "--save", saves, *resume, err=err)
            time.sleep(dice.uniform(0.02, longest))
            child.kill()
            child.communicate()
            kills += 1
            with open(log) as f:
                text = f.read()
            if resume and "resumed" in text:
                at = int(re.search(r"resumed \S+: step (\d+)", text).group(1))
                assert at >= acknowledged, f"kill {kills}: resumed at {at} after {acknowledged} was acknowledged"
            assert "train_gpt:" not in text, text
            if "saved" not in text: # a slow machine: later ones live longer
                longest = min(longest * 1.4, 20)
            acknowledged = max([acknowledged] + [int(s) for s in re.findall(r"saved \S+: step (\d+)", text)])
            for name in os.listdir(saves) if os.path.exists(saves) else []:
                if name.startswith("step-"):
                    while_saving += not os.path.exists(os.path.join(saves, name, "manifest.json"))
            names = [n for n in os.listdir(saves) if n.startswith("step-")] if os.path.exists(saves) else []
            assert len(names) <= 3, names
        assert acknowledged > 0 and while_saving > 0, (acknowledged, while_saving)
        end = train(*flags, "--steps", acknowledged + 20, "--resume", saves, "--save", saves)
        last = train(*SMALL, "--steps", acknowledged + 40, "--resume", saves)
    assert end.digest == train(*SMALL, "--steps", acknowledged + 20).digest
    assert last.digest == train(*SMALL, "--steps", acknowledged + 40).digest
    print(f"# {kills} kills, {while_saving} while saving, up to step {acknowledged}")


def disk_for(checkpoints):
    """A file system that has room for so many."""
    return disk_of(int(one_checkpoint_bytes() * checkpoints))


@contextlib.contextmanager
def disk_of(size):
    with folder() as disk:
        if subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "haul-test", disk],
                          stderr=subprocess.DEVNULL, check=False).returncode:
            raise Skip("a file system of a set size: mounting a tmpfs is refused")
        try:
            yield disk
        finally:
            subprocess.run(["umount", disk], check=True)


def steps_of(root):
    return sorted(int(n[5:]) for n in os.listdir(root) if n.startswith("step-"))


def on_a_full_disk_the_checkpoint_before_stays():
    with disk_for(2.5) as disk: # the third does not fit beside two that are kept
        result = run(*SMALL, "--steps", 8, "--save", disk, "--save-every", 2, "--save-keep", 3, "--digest")
        assert "No space left" in result.err and result.err.count("train_gpt:") == 2, result.err
        assert result.rc == 1 and "step 8/8" in result.err, "training went on; the last save failed"
        assert steps_of(disk) == [2, 4], steps_of(disk)
        last = train(*SMALL, "--steps", 8, "--resume", disk)
        assert last.digest == train(*SMALL, "--steps", 8).digest


def on_a_full_disk_records_that_stay_on_nvme_are_as_they_were():
    """Two copies of records fit beside three data files; the third would be that of a checkpoint to be kept."""
    with folder() as root:
        plain = durable(root, 3)
        train(*SMALL, *plain, "--steps", 1, "--save", os.path.join(root, "one"))
        one = os.path.join(root, "one", "step-0000000001")
        data, records = (os.path.getsize(os.path.join(one, n)) + 20480 for n in ("rank-00000.bin", "records-00000.bin"))
        with disk_of(2 * records + 4 * data) as disk:
            result = run(*SMALL, *plain, "--steps", 8, "--save", disk, "--save-every", 2, "--digest")
            assert result.rc == 1 and "step 8/8" in result.err, "training went on; the last save failed"
            assert "records of" in result.err and "are free" in result.err, result.err
            assert steps_of(disk) == [2, 4, 6], steps_of(disk)
            at = train(*SMALL, "--steps", 8)
            for step in (2, 4, 6):
                path = os.path.join(disk, f"step-{step:010}")
                assert os.path.exists(os.path.join(path, "records-00000.bin")) == (step < 6), step
                assert train(*SMALL, "--steps", 8, "--resume", path).digest == at.digest, step
            assert train(*SMALL, *plain, "--steps", 8, "--resume", disk).digest == at.digest


def shared_bytes(path):
    """Of a file, as the file system maps it (FIEMAP)."""
    request = bytearray(struct.pack("=QQIIII", 0, 1 << 62, 1, 0, 512, 0) + bytes(56 * 512))
    with open(path, "rb") as f:
        fcntl.ioctl(f.fileno(), 0xC020660B, request)
    extents = (struct.unpack_from("=QQQQQI", request, 32 + 56 * i) for i in range(struct.unpack_from("=I", request, 20)[0]))
    return sum(length for _, _, length, _, _, flags in extents if flags & 0x2000)


def where_files_can_share_blocks_records_are_shared():
    with folder() as root:
        image, disk = os.path.join(root, "image"), os.path.join(root, "disk")
        os.mkdir(disk)
        for command in (["truncate", "-s", "400M", image], ["mkfs.xfs", "-q", image], ["mount", "-o", "loop", image, disk]):
            try:
                subprocess.run(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=True)
            except (OSError, subprocess.CalledProcessError):
                raise Skip("xfs on a loop device: " + " ".join(command[:1])) from None
        try:
            saves = os.path.join(disk, "saves")
            train(*SMALL, *durable(disk, 3), "--steps", 6, "--save", saves, "--save-every", 2)
            copies = [os.path.join(saves, f"step-{step:010}", "records-00000.bin") for step in (2, 4, 6)]
            assert shared_bytes(copies[2]) == os.path.getsize(copies[2]), "the store has not been written since"
            assert shared_bytes(copies[0]) == 0, "the store has written all of its blocks again"
            for copy in copies:
                assert train(*SMALL, "--steps", 8, "--resume", os.path.dirname(copy)).digest == train(*SMALL, "--steps", 8).digest
        finally:
            subprocess.run(["umount", disk], check=True)


def the_disk_never_holds_more_than_what_is_kept_and_one():
    """Nor where more were kept before, or where a kill has left one that is not complete."""
    every = [*SMALL, "--save-every", 1]
    with disk_for(3.1) as disk:
        train(*every, "--steps", 3, "--save", disk, "--save-keep", 3)
        assert steps_of(disk) == [1, 2, 3], steps_of(disk)
        train(*every, "--steps", 8, "--resume", disk, "--save", disk, "--save-keep", 2)
        assert steps_of(disk) == [7, 8], steps_of(disk)
        os.remove(os.path.join(disk, "step-0000000008", "manifest.json"))
        train(*every, "--steps", 20, "--resume", disk, "--save", disk, "--save-keep", 2)
        assert steps_of(disk) == [19, 20], steps_of(disk)


def one_checkpoint_bytes():
    with folder() as root:
        train(*SMALL, "--steps", 1, "--save", root)
        path = os.path.join(root, "step-0000000001")
        return sum((os.path.getsize(os.path.join(path, n)) + 4095) // 4096 * 4096 for n in os.listdir(path))


def mpirun():
    if shutil.which("mpirun") is None:
        raise Skip("mpirun")
    return ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "2"]


MPI_ENV = dict(os.environ, OMPI_MCA_btl_vader_single_copy_mechanism="none",
               ASAN_OPTIONS="detect_leaks=0")  # Open MPI leaks


def ranks(*flags):
    """The digest of two ranks."""
    done = subprocess.run([*mpirun(), PROGRAM, *map(str, flags), "--digest", "--quiet"], env=MPI_ENV, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=300, check=False)
    if done.returncode == 3:
        raise Skip("train_gpt under mpirun: " + done.stderr.splitlines()[0])
    assert done.returncode == 0, done.stderr
    return done.stdout.split()[-1]


def ranks_stop_together_save_and_go_on():
    straight = ranks(*SMALL, "--steps", 12)
    with folder() as root:
        saved = ranks(*SMALL, "--steps", 6, "--save", root)
        assert ranks(*SMALL, "--steps", 12, "--resume", root, "--stage", 1) == straight
        assert train(*SMALL, "--steps", 6, "--resume", root).digest == saved, "one rank reads what two wrote"


def children(pid):
    try:
        with open(f"/proc/{pid}/task/{pid}/children") as f:
            return [int(word) for word in f.read().split()]
    except OSError:
        return []


def a_rank_that_is_killed_ends_all_and_they_go_on():
    kill_ranks(lambda root: [])


def a_rank_that_is_killed_has_records_that_stay_on_nvme():
    kill_ranks(lambda root: [*durable(root, 1), "--offload", "optimizer", "--host-mem", "2640KB"])


def kill_ranks(flags_of):
    dice, acknowledged = random.Random(11), 0
    with folder() as root:
        log, saves, flags = os.path.join(root, "log"), os.path.join(root, "saves"), [*SMALL, *flags_of(root)]
        ranks(*flags, "--steps", 3, "--save", saves)
        for kill in range(max(KILLS // 5, 2)):
            with open(log, "w") as err:
                child = subprocess.Popen([*mpirun(), PROGRAM, *map(str, flags), "--save", saves, "--save-every", "3",
                                          "--resume", saves, "--steps", "1000000"], env=MPI_ENV, stderr=err,
                                         stdout=subprocess.DEVNULL)
            for _ in range(2000):
                time.sleep(0.01)
                with open(log) as f:
                    if "resumed" in f.read():
                        break
            time.sleep(dice.uniform(0, 0.7))
            of = children(child.pid)
            assert len(of) >= 2, of
            os.kill(of[dice.randrange(len(of))], signal.SIGKILL)
            child.wait(timeout=120)
            with open(log) as f:
                text = f.read()
            at = int(re.search(r"resumed \S+: step (\d+)", text).group(1))
            assert at >= acknowledged, f"kill {kill}: resumed at {at} after {acknowledged} was acknowledged"
            acknowledged = max([at] + [int(s) for s in re.findall(r"saved \S+: step (\d+)", text)])
        last = ranks(*flags, "--steps", acknowledged + 20, "--resume", saves)
    assert last == ranks(*SMALL, "--steps", acknowledged + 20)


if __name__ == "__main__":
    main([
        resumed_run_has_the_bits_of_a_straight_one,
        skipped_steps_and_loss_scale_go_on,
        tiers_and_form_may_change_in_between,
        one_checkpoint_can_be_named_and_older_ones_go,
        a_damaged_newest_is_passed_over_by_name,
        what_cannot_be_resumed_says_why,
        sigterm_and_ctrl_c_save_and_end_well,
        a_second_ctrl_c_ends_at_once,
        killed_at_any_instant_it_goes_on_to_the_same_bits,
        killed_with_records_that_stay_on_nvme_it_goes_on_to_the_same_bits,
        on_a_full_disk_the_checkpoint_before_stays,
        the_disk_never_holds_more_than_what_is_kept_and_one,
        on_a_full_disk_records_that_stay_on_nvme_are_as_they_were,
        where_files_can_share_blocks_records_are_shared,
        ranks_stop_together_save_and_go_on,
        a_rank_that_is_killed_ends_all_and_they_go_on,
        a_rank_that_is_killed_has_records_that_stay_on_nvme,
    ])
