#!/usr/bin/env python3
"""The ABI stands alone: libhaul.so from Python's standard library, plan and optimizer.

usage: abi_smoke.py PATH_OF_LIBHAUL_SO

Layouts are written out by hand here and pinned; the library confirms them where it fills in
struct_size, and by what it computes from them. Prints one line a check; exits with 1 on a failure.
"""
import ctypes as c
import math
import sys

BF16, FP32, ADAMW, MASTER_FP32 = 2, 1, 0, 0
UNLIMITED = 2**64 - 1
E_ABI = -10009


class Shape(c.Structure):
    _fields_ = [(n, c.c_uint64) for n in ("layers", "hidden", "heads", "vocab", "seq", "batch")]
    _fields_ += [("recompute", c.c_int)]


class PlanOpts(c.Structure):
    _fields_ = [
        ("struct_size", c.c_size_t), ("params", c.c_uint64), ("ranks", c.c_uint32),
        ("ranks_per_node", c.c_uint32), ("dtype", c.c_int), ("master", c.c_int),
        ("device_mem_per_rank", c.c_uint64), ("host_mem_per_node", c.c_uint64),
        ("nvme_mem_per_node", c.c_uint64), ("shape", Shape), ("grad_dtype", c.c_int),
        ("passes", c.c_uint32),
    ]


class PlanRow(c.Structure):
    _fields_ = [
        ("stage", c.c_uint32), ("offload", c.c_int), ("device_bytes_per_rank", c.c_uint64),
        ("host_bytes_per_node", c.c_uint64), ("nvme_bytes_per_node", c.c_uint64),
        ("comm_elems_per_rank", c.c_double), ("comm_ratio", c.c_double),
        ("working_set", c.c_uint64 * 6), ("fits", c.c_int), ("short_by_bytes", c.c_uint64),
        ("short_by_tier_bytes", c.c_uint64 * 3),
    ]


class Optim(c.Structure):
    _fields_ = [
        ("struct_size", c.c_size_t), ("kind", c.c_int), ("beta1", c.c_double),
        ("beta2", c.c_double), ("eps", c.c_double), ("momentum", c.c_double),
        ("nesterov", c.c_int), ("bias_correction", c.c_int), ("amsgrad", c.c_int),
        ("moment_dtype", c.c_int), ("seed", c.c_uint64),
    ]


class OptimArrays(c.Structure):
    _fields_ = [
        ("struct_size", c.c_size_t), ("n", c.c_uint64), ("grad_dtype", c.c_int),
        ("param_dtype", c.c_int), ("master_form", c.c_int), ("grad", c.c_void_p),
        ("master", c.c_void_p), ("m", c.c_void_p), ("v", c.c_void_p), ("param", c.c_void_p),
        ("first", c.c_uint64),
    ]


class OptimStep(c.Structure):
    _fields_ = [
        ("struct_size", c.c_size_t), ("step", c.c_uint64), ("lr", c.c_double),
        ("weight_decay", c.c_double), ("grad_scale", c.c_double), ("parts", c.c_void_p),
        ("nparts", c.c_uint64),
    ]


class SafetensorsInfo(c.Structure):
    _fields_ = [
        ("struct_size", c.c_size_t), ("name", c.c_char_p), ("dtype_name", c.c_char_p),
        ("dtype", c.c_int), ("ndims", c.c_uint32), ("shape", c.c_void_p), ("nelems", c.c_uint64),
        ("nbytes", c.c_uint64), ("file", c.c_char_p),
    ]


class SafetensorsWriterOpts(c.Structure):
    _fields_ = [("struct_size", c.c_size_t), ("shard_bytes", c.c_uint64), ("metadata", c.c_void_p),
                ("nmetadata", c.c_uint32)]


class ConfigOpts(c.Structure):
    _fields_ = [("struct_size", c.c_size_t), ("strict", c.c_int), ("no_environment", c.c_int),
                ("flags", c.c_void_p), ("nflags", c.c_uint32), ("ranks", c.c_uint32)]


class ConfigSetting(c.Structure):
    _fields_ = [("struct_size", c.c_size_t), ("key", c.c_char_p), ("value", c.c_char_p),
                ("source", c.c_int), ("where", c.c_char_p)]


class ConfigValues(c.Structure):
    _fields_ = [
        ("stage", c.c_uint32), ("offload", c.c_int), ("master", c.c_int), ("dtype", c.c_int),
        ("grad_dtype", c.c_int), ("optim", Optim), ("lr", c.c_double), ("weight_decay", c.c_double),
        ("clip_norm", c.c_double), ("loss_scale", c.c_double), ("loss_scale_window", c.c_uint32),
        ("train_batch", c.c_uint64), ("micro_batch", c.c_uint64), ("accumulation", c.c_uint64),
        ("device_mem_bytes", c.c_uint64), ("host_mem_bytes", c.c_uint64),
        ("nvme_mem_bytes", c.c_uint64), ("nvme_dirs", c.c_void_p), ("nnvme_dirs", c.c_uint32),
        ("slots", c.c_uint32), ("window", c.c_uint32), ("max_held", c.c_uint32),
        ("passes", c.c_uint32), ("nthreads", c.c_uint32), ("slot_bytes", c.c_uint64),
        ("overlap", c.c_int), ("io_method", c.c_int),
    ]


# size, then field: offset. x86-64 and AArch64 agree.
PINS = [
    (Shape, 56, {"recompute": 48}),
    (PlanOpts, 120, {"params": 8, "ranks": 16, "dtype": 24, "device_mem_per_rank": 32, "shape": 56,
                     "grad_dtype": 112, "passes": 116}),
    (PlanRow, 136, {"offload": 4, "device_bytes_per_rank": 8, "comm_elems_per_rank": 32,
                    "working_set": 48, "fits": 96, "short_by_bytes": 104,
                    "short_by_tier_bytes": 112}),
    (Optim, 72, {"kind": 8, "beta1": 16, "eps": 32, "momentum": 40, "nesterov": 48,
                 "moment_dtype": 60, "seed": 64}),
    (OptimArrays, 80, {"n": 8, "grad_dtype": 16, "master_form": 24, "grad": 32, "master": 40,
                       "param": 64, "first": 72}),
    (OptimStep, 56, {"step": 8, "lr": 16, "weight_decay": 24, "grad_scale": 32, "parts": 40}),
    (SafetensorsInfo, 64, {"dtype": 24, "shape": 32, "nbytes": 48, "file": 56}),
    (SafetensorsWriterOpts, 32, {"shard_bytes": 8, "nmetadata": 24}),
    (ConfigOpts, 32, {"strict": 8, "flags": 16, "ranks": 28}),
    (ConfigSetting, 40, {"value": 16, "source": 24, "where": 32}),
    (ConfigValues, 232, {"optim": 24, "lr": 96, "loss_scale_window": 128, "train_batch": 136,
                         "nvme_dirs": 184, "slots": 196, "slot_bytes": 216, "io_method": 228}),
]

failures = 0


def check(what, ok):
    global failures
    print(("ok   " if ok else "FAIL ") + what)
    failures += not ok


def check_pins():
    for struct, size, offsets in PINS:
        check(f"{struct.__name__} is {size} bytes", c.sizeof(struct) == size)
        for field, offset in offsets.items():
            check(f"{struct.__name__}.{field} at {offset}", getattr(struct, field).offset == offset)


def check_plan(lib):
    opts, rows = PlanOpts(), (PlanRow * 13)()
    lib.haul_plan_opts_init(c.byref(opts))
    check("haul_plan_opts_init knows this struct_size", opts.struct_size == c.sizeof(PlanOpts))
    check("budgets begin unlimited", opts.device_mem_per_rank == UNLIMITED)
    opts.params, opts.ranks, opts.device_mem_per_rank = 13 * 10**9, 4, 24 * 10**9
    c.memset(c.byref(rows, 12 * c.sizeof(PlanRow)), 0x5A, c.sizeof(PlanRow))
    check("haul_plan_rows succeeds", lib.haul_plan_rows(c.byref(opts), rows) == 0)
    check("nothing is written past twelve rows",
          bytes(rows[12]) == b"\x5a" * c.sizeof(PlanRow))
    none = [rows[3 * stage].device_bytes_per_rank for stage in range(4)]
    check("device bytes of 13B on 4 ranks",
          none == [208 * 10**9, 91 * 10**9, 715 * 10**8, 52 * 10**9])
    check("all short", not any(rows[3 * stage].fits for stage in range(4)))
    row = rows[3 * 3 + 1]
    check("stage 3, optimizer on the host: 6.5 GB, fits",
          (row.stage, row.offload, row.device_bytes_per_rank, row.fits) == (3, 1, 6500000000, 1))
    check("14 bytes per parameter on the host", row.host_bytes_per_node == 14 * 13 * 10**9)
    check("traffic ratio", [rows[3 * s].comm_ratio for s in range(4)] == [1, 1, 1, 1.5])
    opts.struct_size = 0
    check("an uninitialised struct is refused", lib.haul_plan_rows(c.byref(opts), rows) == E_ABI)
    check("and the text says so", b"haul_plan_opts_init" in lib.haul_last_error())


def adamw(p, g, m, v, t, lr, wd, b1=0.9, b2=0.999, eps=1e-8):
    """Loshchilov & Hutter 2019 in double, decay before the update as PyTorch has it."""
    p *= 1 - lr * wd
    m = b1 * m + (1 - b1) * g
    v = b2 * v + (1 - b2) * g * g
    return p - lr / (1 - b1**t) * m / (math.sqrt(v) / math.sqrt(1 - b2**t) + eps), m, v


def check_optim(lib):
    n, lr, wd = 1001, 1e-3, 0.01
    start = [math.sin(i) for i in range(n)]
    grads = [[math.cos(3 * i + t) * 10.0 ** (i % 7 - 3) for i in range(n)] for t in (1, 2, 3)]
    floats = c.c_float * n
    p, m, v = floats(*start), floats(), floats()
    param = (c.c_uint16 * n)()
    want = [(x, 0.0, 0.0) for x in p]
    opt = Optim()
    lib.haul_optim_init(c.byref(opt), ADAMW)
    check("haul_optim_init knows this struct_size", opt.struct_size == c.sizeof(Optim))
    check("defaults are AdamW's", (opt.beta1, opt.beta2, opt.eps) == (0.9, 0.999, 1e-8))
    for t in (1, 2, 3):
        g = floats(*grads[t - 1])
        a = OptimArrays(c.sizeof(OptimArrays), n, FP32, BF16, MASTER_FP32, c.addressof(g),
                        c.addressof(p), c.addressof(m), c.addressof(v), c.addressof(param), 0)
        s = OptimStep(c.sizeof(OptimStep), t, lr, wd, 0.5)
        rc = lib.haul_optim_update(c.byref(opt), c.byref(a), c.byref(s), 2)
        check(f"step {t} succeeds ({lib.haul_last_error().decode() if rc else rc})", rc == 0)
        want = [adamw(*w[:1], 0.5 * g[i], *w[1:], t, lr, wd) for i, w in enumerate(want)]

    # a few FP32 roundings (6e-8 each) of the largest term: moments may cancel
    largest = [max(abs(0.5 * g[i]) for g in grads) for i in range(n)]
    scales = [[max(abs(x), lr) for x in start], largest, [x * x for x in largest]]
    for which, (name, have) in enumerate((("parameters", p), ("m", m), ("v", v))):
        check(f"{name} as in double precision",
              all(abs(have[i] - w[which]) <= 5e-7 * scales[which][i] for i, w in enumerate(want)))
    bits = (c.c_uint32 * n).from_buffer(p)
    check("published parameters: BF16, half away from zero",
          all(param[i] == ((bits[i] + 0x8000) >> 16) & 0xFFFF for i in range(n)))
    a.n, a.grad = 1, None
    check("a missing gradient is refused",
          lib.haul_optim_update(c.byref(opt), c.byref(a), c.byref(s), 1) == -22)


def check_config(lib):
    opts, config = ConfigOpts(), c.c_void_p()
    lib.haul_config_opts_init(c.byref(opts))
    check("haul_config_opts_init knows this struct_size", opts.struct_size == c.sizeof(ConfigOpts))
    flags = (c.c_char_p * 5)(b"stage=2", b"beta2=0.75", b"nvme=/a,/b", b"slot_bytes=1MiB", b"io_method=threads")
    opts.no_environment, opts.flags, opts.nflags = 1, c.cast(flags, c.c_void_p), 5
    check("haul_config_load succeeds", lib.haul_config_load(None, c.byref(opts), c.byref(config)) == 0)
    lib.haul_config_values.restype = c.POINTER(ConfigValues)
    v = lib.haul_config_values(config).contents
    check("values are where they are pinned",
          (v.stage, v.offload, v.optim.beta2, v.nnvme_dirs, v.slot_bytes, v.overlap, v.io_method)
          == (2, 2, 0.75, 2, 1 << 20, 1, 2))
    setting = ConfigSetting(c.sizeof(ConfigSetting))
    check("haul_config_get_setting knows this struct_size",
          lib.haul_config_get_setting(config, 0, c.byref(setting)) == 0)
    check("and says the value and its source",
          (setting.key, setting.value, setting.source, setting.where) == (b"stage", b"2", 3, b"stage"))
    lib.haul_config_close(config)


def main():
    lib = c.CDLL(sys.argv[1])
    lib.haul_last_error.restype = c.c_char_p
    lib.haul_version.restype = c.c_char_p
    lib.haul_optim_update.argtypes = [c.c_void_p, c.c_void_p, c.c_void_p, c.c_uint]
    print("libhaul", lib.haul_version().decode())
    check_pins()
    check_plan(lib)
    check_optim(lib)
    check_config(lib)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
