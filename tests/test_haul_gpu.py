#!/usr/bin/env python3
"""test_haul_gpu.py HAUL FAKES: the haul command where there is a GPU, over the fake driver in the folder FAKES, and
where there is none."""
import json
import os
import subprocess
import sys

import tap

HAUL, FAKES = (os.path.abspath(p) for p in sys.argv[1:3])
ENVIRONMENT = 3


def haul(*words, rc=0, **env):
    env = {**os.environ, "LD_LIBRARY_PATH": FAKES, **env}
    done = subprocess.run([HAUL, *words], text=True, capture_output=True, timeout=120, check=False, env=env)
    assert done.returncode == rc, (words, done.returncode, done.stdout, done.stderr)
    return done


def gpu_checks(**env):
    """{name: [(status, text)]} of what doctor says about GPUs."""
    found = {}
    for check in json.loads(haul("doctor", "--json", **env).stdout)["checks"]:
        if check["name"].startswith("gpu"):
            found.setdefault(check["name"], []).append((check["status"], check["text"]))
    return found


def doctor_names_every_gpu_and_what_it_can():
    found = gpu_checks()
    for name in ("gpu", "gpu link", "gpu pinning"):
        assert [text[:2] for _, text in found[name]] == ["0:", "1:"], found
    for ordinal, (status, text) in enumerate(found["gpu"]):
        assert status == "ok" and f"fake GPU {ordinal}" in text and "2.15 GB, driver for CUDA 1" in text, text
    assert "does not say how it is connected" in found["gpu link"][0][1], found  # no such slot in this machine
    assert "RLIMIT_MEMLOCK" in found["gpu pinning"][0][1], found
    assert found["gpu p2p"] == [("ok", "2 of 2 pairs of GPUs reach each other's memory")], found
    assert found["gpu haul"] == [("ok", "haul's kernels load on it")], found


def doctor_goes_on_when_the_driver_fails():
    found = gpu_checks(FAKE_CUDA_FAIL_NTH="1")
    assert list(found) == ["gpu"] and "no device (cuInit 999)" in found["gpu"][0][1], found
    told = set()
    for nth in range(2, 60):
        found = gpu_checks(FAKE_CUDA_FAIL_NTH=str(nth))
        told.update(text for checks in found.values() for status, text in checks if status == "warn")
    assert any("does not answer" in text for text in told), told
    assert any("1 of 2 pairs" in text for text in told), told
    assert any("CUDA_ERROR_UNKNOWN" in text for text in told), told


def doctor_without_a_driver_says_what_to_do():
    without_a_driver()
    done = haul("doctor", "--json", LD_LIBRARY_PATH="")
    found = [c for c in json.loads(done.stdout)["checks"] if c["name"].startswith("gpu")]
    assert len(found) == 1 and found[0]["status"] == "warn" and "no NVIDIA driver" in found[0]["text"], found
    assert "install" in found[0]["remedy"], found


def link(*words):
    return json.loads(haul("bench", "link", "--device", "cuda", "--json", "--repeats", "3", *words).stdout)


def links_are_measured_from_every_kind_of_memory():
    found = link("--size", "256KiB")
    assert found["emulated"] is False and "fake GPU 0" in found["device"], found
    assert [(r["bytes"], r["memory"]) for r in found["rows"]] == [
        (size << 10, memory) for size in (64, 256) for memory in ("pool", "hostalloc", "pageable")], found
    ways = ("h2d_gb_per_s", "d2h_gb_per_s", "duplex_gb_per_s")
    assert all(row[way] > 0 for row in found["rows"] for way in ways), found
    largest = found["rows"][3]
    assert all(found[way] == largest[way] for way in ways), found
    assert found["ratio_to_hostalloc"] > 0 and found["h2d_latency_us"] > 0 and found["d2h_latency_us"] > 0, found
    assert "fake GPU 1" in link("--size", "64KiB", "--ordinal", "1")["device"]
    text = haul("bench", "link", "--device", "cuda", "--size", "64KiB", "--repeats", "1").stdout
    assert "pool to cuMemHostAlloc" in text and "emulated" not in text, text


def a_gpu_that_is_not_there_is_refused_by_number():
    done = haul("bench", "link", "--device", "cuda", "--ordinal", "7", rc=ENVIRONMENT)
    assert done.stdout == "" and "no GPU 7" in done.stderr and done.stderr.count("\n") == 1, done


def a_link_without_a_driver_is_refused_in_one_line():
    without_a_driver()
    done = haul("bench", "link", "--device", "cuda", rc=ENVIRONMENT, LD_LIBRARY_PATH="")
    assert done.stdout == "" and done.stderr.count("\n") == 1, done
    assert "no CUDA driver" in done.stderr and "--device host" in done.stderr, done


def without_a_driver():
    if subprocess.run([sys.executable, "-c", "import ctypes; ctypes.CDLL('libcuda.so.1')"],
                      env={**os.environ, "LD_LIBRARY_PATH": ""}, stderr=subprocess.DEVNULL, check=False).returncode == 0:
        raise tap.Skip("a machine without a CUDA driver")


if __name__ == "__main__":
    tap.main((doctor_names_every_gpu_and_what_it_can, doctor_goes_on_when_the_driver_fails,
              doctor_without_a_driver_says_what_to_do, links_are_measured_from_every_kind_of_memory,
              a_gpu_that_is_not_there_is_refused_by_number, a_link_without_a_driver_is_refused_in_one_line))
