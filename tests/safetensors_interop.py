#!/usr/bin/env python3
"""Files that haul writes load in the format's own library, and the other way round, with the same bits.

usage: safetensors_interop.py LIBHAUL_SO VENV

The library is the Python package safetensors, with numpy. Where they are not installed they are put into a virtual
environment in the folder VENV, once; without a network that is a skip (exit 77).
"""
import ctypes as c
import os
import pathlib
import random
import subprocess
import sys
import tempfile

NEEDED = ["numpy", "safetensors"]
FP32, BF16, FP16 = 1, 2, 3


def have_them():
    try:
        import numpy  # noqa: F401
        import safetensors.numpy  # noqa: F401
    except ImportError:
        return False
    return True


def with_venv(venv):
    """Start again under a Python that has them."""
    python = pathlib.Path(venv) / "bin" / "python"
    pip = [python, "-m", "pip", "install", "--quiet", "--retries", "0", "--timeout", "15", *NEEDED]
    try:
        if not python.exists():
            subprocess.run([sys.executable, "-m", "venv", venv], check=True, timeout=120,
                           capture_output=True)
        if subprocess.run([python, "-c", "import numpy, safetensors.numpy"],
                          capture_output=True).returncode:
            subprocess.run(pip, check=True, timeout=180, capture_output=True)
    except (OSError, subprocess.SubprocessError) as why:
        print(f"SKIP: no {' and '.join(NEEDED)} for Python, and they cannot be installed: {why}")
        sys.exit(77)
    os.execv(python, [python, __file__, *sys.argv[1:], "again"])


class Decl(c.Structure):
    _fields_ = [("name", c.c_char_p), ("dtype", c.c_int), ("ndims", c.c_uint32),
                ("shape", c.POINTER(c.c_uint64))]


class WriterOpts(c.Structure):
    _fields_ = [("struct_size", c.c_size_t), ("shard_bytes", c.c_uint64), ("metadata", c.c_void_p),
                ("nmetadata", c.c_uint32)]


class Haul:
    def __init__(self, path):
        self.lib = c.CDLL(path)
        self.lib.haul_last_error.restype = c.c_char_p
        self.lib.haul_safetensors_count.restype = c.c_uint64
        self.lib.haul_safetensors_count.argtypes = [c.c_void_p]
        self.lib.haul_safetensors_close.argtypes = [c.c_void_p]
        self.lib.haul_safetensors_writer_close.argtypes = [c.c_void_p]

    def __call__(self, name, *args):
        if getattr(self.lib, name)(*args) < 0:
            sys.exit(f"{name}: {self.lib.haul_last_error().decode()}")

    def write(self, path, tensors, shard_bytes=0, piece=1000):
        """tensors: (name, dtype, FP32 array)"""
        opts, w, shapes = WriterOpts(), c.c_void_p(), []
        self.lib.haul_safetensors_writer_opts_init(c.byref(opts))
        opts.shard_bytes = shard_bytes
        decls = (Decl * len(tensors))()
        for i, (name, dtype, array) in enumerate(tensors):
            shapes.append((c.c_uint64 * max(array.ndim, 1))(*array.shape))
            decls[i] = Decl(name.encode(), dtype, array.ndim, shapes[-1])
        self("haul_safetensors_writer_open", path.encode(), c.byref(opts), decls,
             c.c_uint64(len(tensors)), c.byref(w))
        for i, (_, _, array) in enumerate(tensors):
            flat = array.reshape(-1)
            for first in range(0, flat.size, piece):
                part = flat[first:first + piece].copy()
                self("haul_safetensors_writer_put", w, c.c_uint64(i), c.c_uint64(first),
                     c.c_uint64(part.size), c.c_void_p(part.ctypes.data))
        self("haul_safetensors_writer_finish", w)
        self.lib.haul_safetensors_writer_close(w)

    def read(self, path, name, n):
        import numpy as np
        st, index, out = c.c_void_p(), c.c_uint64(), np.zeros(n, dtype="<f4")
        self("haul_safetensors_open", path.encode(), c.byref(st))
        self("haul_safetensors_find", st, name.encode(), c.byref(index))
        self("haul_safetensors_read", st, index, c.c_uint64(0), c.c_uint64(n),
             c.c_void_p(out.ctypes.data))
        self.lib.haul_safetensors_close(st)
        return out


def random_bits(rng, n):
    """Any FP32 patterns but NaNs of other payloads than haul's."""
    import numpy as np
    bits = np.array([rng.getrandbits(32) for _ in range(n)], dtype="<u4")
    bits[(bits & 0x7fffffff) > 0x7f800000] = 0x7fc00000
    return bits


def check_ours(haul, folder, rng):
    """haul writes, the format's library reads: F32 and F16 through numpy, BF16 through raw bytes."""
    import numpy as np
    from safetensors import deserialize
    from safetensors.numpy import load_file
    bits = random_bits(rng, 3 * 5 * 7)
    half = np.array([rng.uniform(-70000, 70000) for _ in range(40)], dtype="<f4")
    tensors = [("h.0.attn.c_attn.weight", BF16, bits.view("<f4")), ("a", FP32, bits.view("<f4").reshape(3, 5, 7)),
               ("é \"q\"", FP16, half.reshape(8, 5)), ("scalar", FP32, np.float32(2.5).reshape(())),
               ("empty", BF16, np.zeros((0, 4), dtype="<f4"))]
    path = os.path.join(folder, "ours.safetensors")
    haul.write(path, tensors, piece=33)
    with open(path, "rb") as f:
        raw = dict(deserialize(f.read()))
    assert set(raw) == {name for name, _, _ in tensors}
    assert bytes(raw["a"]["data"]) == bits.tobytes()
    assert list(raw["a"]["shape"]) == [3, 5, 7] and raw["a"]["dtype"] == "F32"
    away = ((bits.astype(np.uint64) + 0x8000) >> 16).astype("<u2")  # half away from zero
    assert bytes(raw["h.0.attn.c_attn.weight"]["data"]) == away.tobytes()
    assert raw["h.0.attn.c_attn.weight"]["dtype"] == "BF16"
    with np.errstate(over="ignore"):
        assert bytes(raw["é \"q\""]["data"]) == half.astype("<f2").tobytes()
    assert list(raw["scalar"]["shape"]) == [] and list(raw["empty"]["shape"]) == [0, 4]
    haul.write(path, tensors[1:4:2])
    assert load_file(path)["scalar"] == 2.5
    print("ok   what haul writes is read by the format's library, bit for bit")


def check_theirs(haul, folder, rng):
    import numpy as np
    from safetensors.numpy import save_file
    bits = random_bits(rng, 1001)
    halves = np.array([rng.getrandbits(16) for _ in range(77)], dtype="<u2").view("<f2")
    path = os.path.join(folder, "theirs.safetensors")
    save_file({"w": bits.view("<f4").reshape(7, 143), "h": halves, "ids": np.arange(5)}, path, {"k": "v"})
    assert haul.read(path, "w", 1001).tobytes() == bits.tobytes()
    back, want = haul.read(path, "h", 77), halves.astype("<f4")
    assert np.array_equal(np.isnan(back), np.isnan(want))
    keep = ~np.isnan(want)
    assert back[keep].tobytes() == want[keep].tobytes()
    print("ok   what the format's library writes is read by haul, bit for bit")


def check_set(haul, folder):
    import numpy as np
    from safetensors.numpy import load_file
    import json
    tensors = [(f"t.{i}", FP32, np.full(i + 1, i, dtype="<f4")) for i in range(9)]
    haul.write(os.path.join(folder, "model.safetensors"), tensors, shard_bytes=48)
    with open(os.path.join(folder, "model.safetensors.index.json"), encoding="utf-8") as f:
        index = json.load(f)
    assert index["metadata"]["total_size"] == sum(a.nbytes for _, _, a in tensors)
    for name, _, array in tensors:
        assert np.array_equal(load_file(os.path.join(folder, index["weight_map"][name]))[name], array)
    assert haul.read(folder, "t.8", 9).tobytes() == tensors[8][2].tobytes()
    print("ok   a set and its index")


def main():
    if not have_them():
        if "again" in sys.argv:
            sys.exit("the virtual environment lacks what was installed into it")
        with_venv(sys.argv[2])
    haul, rng = Haul(sys.argv[1]), random.Random(1)
    with tempfile.TemporaryDirectory() as folder:
        check_ours(haul, folder, rng)
        check_theirs(haul, folder, rng)
    with tempfile.TemporaryDirectory() as folder:
        check_set(haul, folder)


if __name__ == "__main__":
    main()
