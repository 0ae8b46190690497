"""train_gpt_runner.py: running train_gpt from a test. Standard library only.

Words after the program name tests: only those that hold one of them run."""
import json
import os
import subprocess
import sys
import tempfile

import tap
from tap import Skip  # noqa: also for those who import it from here


class Result:
    def __init__(self, done, folder):
        self.rc, self.out, self.err = done.returncode, done.stdout, done.stderr
        self.left = sorted(os.listdir(folder))
        self.lines = []
        path = os.path.join(folder, "run.jsonl")
        if os.path.exists(path):
            with open(path) as f:
                self.lines = [json.loads(line) for line in f]

    @property
    def digest(self):
        word, value = self.out.splitlines()[-1].split()
        assert word == "digest" and len(value) == 16, self.out
        int(value, 16)
        return value

    @property
    def losses(self):
        return [line["loss"] for line in self.lines if "summary" not in line]

    @property
    def summary(self):
        assert self.lines[-1]["summary"] is True
        return self.lines[-1]


def run(*flags, env=None, preexec=None, timeout=600, program=None):
    """Run the program in an empty folder; {jsonl} in a flag is a file that Result.lines reads, {nvme} a
    folder that must be empty again in the end."""
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as nvme:
        jsonl = os.path.join(folder, "run.jsonl")
        words = [str(f).replace("{jsonl}", jsonl).replace("{nvme}", nvme) for f in flags]
        done = subprocess.run([program or PROGRAM] + words,
                              cwd=folder, env=dict(os.environ, **(env or {})), text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=preexec,
                              timeout=timeout, check=False)
        assert os.listdir(nvme) == [], (flags, os.listdir(nvme))
        return Result(done, folder)


def train(*flags, **options):
    """A run that must succeed, quiet, with digest and JSON lines."""
    result = run(*flags, "--quiet", "--digest", "--jsonl", "{jsonl}", **options)
    assert result.rc == 0, (flags, result.rc, result.err)
    return result


def plan(*flags, **options):
    """What --plan-only says: {(tier, purpose): bytes}, "in all" being the sums. Fits or not."""
    result = run(*flags, "--plan-only", **options)
    assert result.out.startswith("tier"), (flags, result.err)
    rows = (line.split() for line in result.out.splitlines()[1:])
    return {(words[0], " ".join(words[1:-1])): int(words[-1]) for words in rows}


def in_memory_cgroup(limit_bytes, *flags):
    """Run in a memory cgroup (v1 or v2) with this limit; the run, and the most bytes the cgroup held."""
    for root, limit, most in (
            ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.max_usage_in_bytes"),
            ("/sys/fs/cgroup", "memory.max", "memory.peak")):
        try:
            group = tempfile.mkdtemp(prefix="haul-test-", dir=root)
        except OSError:
            continue
        try:
            with open(os.path.join(group, limit), "w") as f:
                f.write(str(limit_bytes))

            def enter():
                with open(os.path.join(group, "cgroup.procs"), "w") as f:
                    f.write(str(os.getpid()))
            result = run(*flags, preexec=enter, timeout=3000)
            with open(os.path.join(group, most)) as f:
                return result, int(f.read())
        except subprocess.TimeoutExpired:
            raise
        except (OSError, subprocess.SubprocessError):
            continue
        finally:
            os.rmdir(group)
    raise Skip("a memory cgroup that this user may make")


def main(tests):
    """Each of them; words after the program's name choose."""
    tap.main(tests, only=sys.argv[2:])


PROGRAM = os.path.abspath(sys.argv[1])
