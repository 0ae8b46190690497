"""train_gpt on two nodes of two ranks, over TCP: each node is a network namespace with a host name and shared
memory of its own. Needs root.

Usage: train_gpt_nodes.py PROGRAM"""
import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import train_gpt_runner
from train_gpt_ranks import MPI_ENV, SMALL, launcher, train
from train_gpt_runner import Skip, run

ADDRESSES = ("10.77.0.1", "10.77.0.2")  # inside the namespaces only
TIMEOUT_S = 10  # of a wait

ENTER = """#!/bin/sh
# ADDRESS COMMAND...: how mpirun reaches a node
case $1 in
%s
*) echo "no node $1" >&2; exit 1 ;;
esac
shift
exec ip netns exec "$node" unshare --uts --ipc --mount sh -c \
    'hostname "$0"; mount -t tmpfs shm /dev/shm; eval "$*"' "$node" "$@"
"""


def tell(*command):
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Skip(f"{' '.join(command)}: {done.stderr.strip()}")


def clear(name):
    """No process stays on a node: MPI's daemon outlives its launcher."""
    pids = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True, check=False).stdout
    for pid in pids.split():
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)


@contextlib.contextmanager
def two_nodes():
    """The words that start a launcher on the first node, which reaches both."""
    for program in ("ip", "unshare"):
        if shutil.which(program) is None:
            raise Skip(f"{program} is missing")
    names = [f"haul{os.getpid()}{end}" for end in "ab"]
    made = []
    with tempfile.TemporaryDirectory() as folder:
        enter = os.path.join(folder, "enter")
        with open(enter, "w") as f:
            f.write(ENTER % "\n".join(f"{a}) node={n} ;;" for a, n in zip(ADDRESSES, names)))
        os.chmod(enter, 0o755)
        try:
            for name in names:
                tell("ip", "netns", "add", name)
                made.append(name)
            tell("ip", "link", "add", "veth", "netns", names[0], "type", "veth", "peer", "name", "veth",
                 "netns", names[1])
            for name, address in zip(names, ADDRESSES):
                tell("ip", "-n", name, "addr", "add", address + "/24", "dev", "veth")
                tell("ip", "-n", name, "link", "set", "veth", "up")
                tell("ip", "-n", name, "link", "set", "lo", "up")
            yield [enter, ADDRESSES[0], launcher(), "--mca", "plm_rsh_agent", enter, "--host",
                   ",".join(a + ":2" for a in ADDRESSES), "--bind-to", "none", "--mca", "btl", "self,vader,tcp",
                   "-x", "OMPI_MCA_btl_vader_single_copy_mechanism", "-x", "TRAIN_GPT_TIMEOUT_S"]
        finally:
            for name in made:
                clear(name)
                subprocess.run(["ip", "netns", "del", name], check=False)


def on_nodes(start, *flags, **more):
    env = {k: v for k, v in MPI_ENV.items() if k not in ("OMPI_MCA_plm_rsh_agent", "OMPI_MCA_btl")}
    return run(*start[1:], "-n", 4, train_gpt_runner.PROGRAM, *flags, program=start[0],
               env=dict(env, TRAIN_GPT_TIMEOUT_S=str(TIMEOUT_S)), **more)


def two_nodes_give_the_digest_of_one():
    flags = [*SMALL, "--steps", 10]
    with two_nodes() as start:
        for stage in range(4):
            there = on_nodes(start, *flags, "--stage", stage, "--quiet", "--digest")
            assert there.rc == 0, there.err
            assert there.digest == train(4, *flags, "--stage", stage).digest, stage


def shared_memory_does_not_reach_another_node():
    with two_nodes() as start:
        result = on_nodes(start, *SMALL, "--steps", 2, "--share", "pull", timeout=60)
    assert result.rc != 0 and "share pull needs several ranks, all on one node" in result.err, result.err


def programs():
    """Processes of the program."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/{pid}/exe") == os.path.realpath(train_gpt_runner.PROGRAM):
                found.append(int(pid))
    return found


def of_a_killed_rank_those_of_both_nodes_end():
    """The launcher itself may not: Open MPI 4.1 waits on with --enable-recovery over nodes."""
    rng = random.Random(5)
    took = []
    with two_nodes() as start:
        for stage in range(4):
            words = [*start, "--enable-recovery", "-n", "4", train_gpt_runner.PROGRAM, *SMALL, "--quiet",
                     "--steps", 1000000, "--stage", stage]
            env = dict(os.environ, **MPI_ENV, TRAIN_GPT_TIMEOUT_S=str(TIMEOUT_S))
            del env["OMPI_MCA_plm_rsh_agent"], env["OMPI_MCA_btl"]
            before = set(programs())
            with subprocess.Popen([str(w) for w in words], env=env, stdout=subprocess.DEVNULL,
                                  stderr=subprocess.DEVNULL) as job:
                try:
                    took.append(kill_one(rng, before))
                finally:
                    job.kill()
    print(f"# the others had ended after {min(took):.1f} to {max(took):.1f} s, time-out {TIMEOUT_S} s")


def kill_one(rng, before):
    end = time.monotonic() + 60
    while len(set(programs()) - before) < 4:
        assert time.monotonic() < end, "the ranks do not start"
        time.sleep(0.05)
    time.sleep(rng.uniform(2, 5))
    os.kill(rng.choice(sorted(set(programs()) - before)), signal.SIGKILL)
    killed = time.monotonic()
    while set(programs()) - before:
        assert time.monotonic() < killed + TIMEOUT_S, "a rank goes on"
        time.sleep(0.05)
    return time.monotonic() - killed


if __name__ == "__main__":
    sys.exit(train_gpt_runner.main([two_nodes_give_the_digest_of_one, shared_memory_does_not_reach_another_node,
                                    of_a_killed_rank_those_of_both_nodes_end]))
