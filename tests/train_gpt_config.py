#!/usr/bin/env python3
"""train_gpt_config.py PROGRAM: --config means what the flags mean, and flags count before it."""
import json
import tempfile

from train_gpt_runner import main, plan, run, train

MODEL = ["--layers", 2, "--dim", 32, "--heads", 2, "--seq", 32, "--steps", 4]


FILES = []  # there until the program ends


def config(settings):
    """Flags for a file of these settings."""
    FILES.append(tempfile.NamedTemporaryFile("w", suffix=".json"))
    FILES[-1].write(settings if isinstance(settings, str) else json.dumps(settings))
    FILES[-1].flush()
    return ["--config", FILES[-1].name]


TRAINING = {
    "bf16": {"enabled": True},
    "zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}},
    "optimizer": {"type": "AdamW", "params": {"lr": 0.004, "betas": [0.9, 0.95], "weight_decay": 0.01}},
    "gradient_clipping": 0.5, "train_batch_size": 12, "gradient_accumulation_steps": 3,
}
SAME = ["--stage", 3, "--offload", "all", "--lr", 0.004, "--clip", 0.5, "--batch", 12, "--accum", 3]


def a_deepspeed_file_trains_as_the_flags_do():
    flags = config(TRAINING)
    a, b = train(*MODEL, *flags), train(*MODEL, *SAME)
    assert a.digest == b.digest and a.losses == b.losses


def every_hyperparameter_of_the_file_counts():
    digests = {train(*MODEL, *config(TRAINING)).digest}
    for key, value in (("lr", 0.001), ("betas", [0.8, 0.95]), ("betas", [0.9, 0.99]), ("eps", 0.001),
                       ("weight_decay", 0.5), ("adam_w_mode", False)):
        params = {**TRAINING["optimizer"]["params"], key: value}
        kind = "Adam" if key == "adam_w_mode" else "AdamW"
        digests.add(train(*MODEL, *config({**TRAINING, "optimizer": {"type": kind, "params": params}})).digest)
    digests.add(train(*MODEL, *config({**TRAINING, "gradient_clipping": 0.01})).digest)
    digests.add(train(*MODEL, *config({**TRAINING, "fp16": {"enabled": True}, "bf16": {"enabled": False}})).digest)
    assert len(digests) == 9, digests


def a_flag_counts_before_the_environment_and_that_before_the_file():
    flags = config({"haul": {"lr": 0.004, "offload": "optimizer", "train_batch": 12}})
    b = train(*MODEL, "--offload", "optimizer", "--batch", 12, "--lr", 0.1)
    assert train(*MODEL, *flags, "--lr", 0.1).digest == b.digest
    assert train(*MODEL, "--lr", 0.1, *flags).digest == b.digest, "wherever the flag stands"
    assert train(*MODEL, *flags, env={"HAUL_LR": "0.1"}).digest == b.digest


def placement_is_that_of_the_file():
    with tempfile.TemporaryDirectory() as folder:
        settings = config({"haul": {"host_mem": "1480KiB", "nvme": [folder], "slots": 2, "slot_bytes": "16KiB",
                                    "master": "split", "window": 3, "threads": 1, "overlap": False,
                                    "io_method": "threads"}})
        flags = ["--host-mem", "1480KiB", "--nvme", folder, "--slots", 2, "--slot-bytes", "16KiB",
                 "--master", "split", "--window", 3, "--threads", 1, "--no-overlap", "--io", "threads"]
        assert plan(*MODEL, *settings) == plan(*MODEL, *flags)
        a, b = train(*MODEL, *settings), train(*MODEL, *flags)
        assert a.digest == b.digest and a.summary["peaks"] == b.summary["peaks"]
        assert a.summary["peaks"]["nvme"] > 0


def refuse(code, text, *flags):
    result = run(*MODEL, *flags, timeout=60)
    assert result.rc == code and text in result.err and result.out == "", (flags, result.rc, result.err)
    assert len(result.err.splitlines()) == 1, result.err


def what_is_wrong_with_a_file_is_one_line():
    refuse(2, "zero_optimization.stage is 4; 0 to 3", *config({"zero_optimization": {"stage": 4}}))
    refuse(2, "not JSON", *config("{"))
    refuse(2, "optimizer.type is \"Lamb\"", *config({"optimizer": {"type": "Lamb"}}))
    refuse(1, "No such file", "--config", "/nonexistent.json")
    refuse(2, "needs a value", "--config")
    refuse(2, "not divisible by --accum 3", *config({"haul": {"train_batch": 8, "accumulation": 3}}))
    result = run(*MODEL, *config({"zero_optimization": {"stge": 3}}), "--quiet")
    assert result.rc == 0 and "did you mean zero_optimization.stage?" in result.err, result.err


main([a_deepspeed_file_trains_as_the_flags_do, every_hyperparameter_of_the_file_counts,
      a_flag_counts_before_the_environment_and_that_before_the_file, placement_is_that_of_the_file,
      what_is_wrong_with_a_file_is_one_line])
