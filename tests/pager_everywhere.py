"""The pager's suites on every file system and under every limit that this machine lets us make.

Usage: pager_everywhere.py SUITE... (executables)"""
import ctypes
import os
import resource
import shutil
import struct
import subprocess
import sys
import tempfile
import time

from train_gpt_runner import Skip, main

NOBODY = 65534
PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2
IO_URING_SETUP = 425  # on every architecture


def run_suites(folder, suites, preexec=None):
    """All in turn, in the folder. What failed, and how many cases there were."""
    failed, cases = [], 0
    for suite in suites:
        done = subprocess.run([suite, *([] if PLAIN else ["--tap", "--jobs", "1"])], cwd=folder, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, preexec_fn=preexec,
                              timeout=900, check=False)
        lines = done.stdout.splitlines()
        cases += sum(line.startswith("ok ") for line in lines)
        failed += [f"{os.path.basename(suite)}: {line}" for line in lines if line.startswith("not ok")]
        if done.returncode and not any(line.startswith("not ok") for line in lines):
            failed.append(f"{os.path.basename(suite)}: exit {done.returncode}: {lines[-3:]}")
    assert not failed, failed
    assert cases > 10 * len(suites) / 2, f"only {cases} cases ran"


def on_image(kind, *make):
    """On a loop device with this file system."""
    if os.geteuid() != 0:
        raise Skip("mounting needs root")
    if shutil.which(make[0]) is None:
        raise Skip(f"{make[0]} is missing")
    with tempfile.TemporaryDirectory(dir=".") as top:
        image, folder = os.path.join(top, "image"), os.path.abspath(os.path.join(top, "mounted"))
        with open(image, "wb") as f:
            f.truncate(6 << 30)
        os.mkdir(folder)
        subprocess.run([*make, image], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=True)
        mounted = subprocess.run(["mount", "-o", "loop", image, folder], capture_output=True, check=False)
        if mounted.returncode:
            raise Skip(f"{kind} cannot be mounted here: {mounted.stderr.decode().strip()}")
        try:
            run_suites(folder, SUITES)
        finally:
            for _ in range(100):  # the kernel takes rings of processes that have ended apart in its own time
                busy = subprocess.run(["umount", folder], capture_output=True, check=False)
                if busy.returncode == 0:
                    break
                time.sleep(0.1)
            else:
                subprocess.run(["umount", "-l", folder], check=True)
        assert busy.returncode == 0, f"something is left open on it: {busy.stderr.decode().strip()}"


def on_this_file_system():
    with tempfile.TemporaryDirectory(dir=".") as folder:
        run_suites(folder, SUITES)


def on_tmpfs():
    if not os.path.ismount("/dev/shm"):
        raise Skip("/dev/shm is no tmpfs here")
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        run_suites(folder, SUITES)


def on_xfs():
    on_image("xfs", "mkfs.xfs", "-q")


def on_btrfs():
    on_image("btrfs", "mkfs.btrfs", "-q")


def as_an_ordinary_user_with_64_kib_of_locked_memory():
    if os.geteuid() != 0:
        raise Skip("becoming another user needs root")

    def become():
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (65536, 65536))
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        os.chown(folder, NOBODY, NOBODY)
        able = subprocess.run([SUITES[0], "--help"], cwd=folder, preexec_fn=become, check=False,
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        if able.returncode == 126:
            raise Skip("the suites lie where an ordinary user may not read")
        try:
            run_suites(folder, SUITES, become)
        except PermissionError as error:
            raise Skip("the suites lie where an ordinary user may not read") from error


def with_io_uring_refused_by_seccomp():
    """What insists on io_uring is left out."""
    def refuse():
        def op(code, jt, jf, k):
            return struct.pack("HBBI", code, jt, jf, k)
        program = (op(0x20, 0, 0, 0) + op(0x15, 0, 1, IO_URING_SETUP) +
                   op(0x06, 0, 0, 0x00050000 | 1) + op(0x06, 0, 0, 0x7fff0000))
        code = ctypes.create_string_buffer(program)
        filter_ = struct.pack("HL", len(program) // 8, ctypes.addressof(code))
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or \
                libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.c_char_p(filter_), 0, 0):
            os._exit(125)
    with tempfile.TemporaryDirectory(dir=".") as folder:
        run_suites(folder, [s for s in SUITES if "uring" not in os.path.basename(s)], refuse)


if __name__ == "__main__":
    PLAIN = sys.argv[1] == "plain"
    SUITES = [os.path.abspath(word) for word in sys.argv[2:]]
    sys.argv = sys.argv[:2]
    sys.exit(main([on_this_file_system, on_tmpfs, on_xfs, on_btrfs,
                   as_an_ordinary_user_with_64_kib_of_locked_memory, with_io_uring_refused_by_seccomp]))
