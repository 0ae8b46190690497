#!/usr/bin/env python3
"""train_gpt_weights.py PROGRAM: weights from and to safetensors files under GPT-2's names.

The oracle is GPT-2's forward pass written out here in double precision, with a linear layer as x W + b, W (in,
out), as in the files that are passed on. Standard library only.
"""
import json
import math
import os
import random
import struct
import tempfile

from train_gpt_runner import main, run, train

DIM, HEADS, LAYERS, SEQ, VOCAB = 8, 2, 2, 6, 256
GPT2_VOCAB = 50257
MODEL = ["--layers", LAYERS, "--dim", DIM, "--heads", HEADS, "--seq", SEQ, "--batch", 2]
BYTE = ord("k")


def write(path, tensors, dtype="F32"):
    """tensors: name -> (shape, values)"""
    header, data = {}, b""
    for name, (shape, values) in tensors.items():
        raw = struct.pack(f"<{len(values)}f", *values)
        if dtype == "BF16":  # of values that BF16 holds
            raw = b"".join(raw[i + 2:i + 4] for i in range(0, len(raw), 4))
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data)


def read(path):
    with open(path, "rb") as f:
        raw = f.read()
    n = struct.unpack("<Q", raw[:8])[0]
    tensors = {}
    for name, entry in json.loads(raw[8:8 + n]).items():
        if name != "__metadata__":
            begin, end = entry["data_offsets"]
            assert entry["dtype"] == "F32"
            tensors[name] = (entry["shape"], struct.unpack(f"<{(end - begin) // 4}f",
                                                           raw[8 + n + begin:8 + n + end]))
    return tensors


def gpt2(rng, positions=SEQ, places=7, vocab=VOCAB):
    """A model's tensors, their values multiples of 2^-places: exact in BF16 when that is 7."""
    def tensor(*shape, mean=0.0, spread=0.5):
        n = math.prod(shape)
        return list(shape), [round((mean + rng.uniform(-spread, spread)) * 2**places) / 2**places for _ in range(n)]

    model = {"wte.weight": tensor(vocab, DIM), "wpe.weight": tensor(positions, DIM)}
    for layer in range(LAYERS):
        h = f"h.{layer}."
        for norm in ("ln_1", "ln_2"):
            model[f"{h}{norm}.weight"] = tensor(DIM, mean=0.9, spread=0.09)
            model[f"{h}{norm}.bias"] = tensor(DIM)
        for name, wide_in, wide_out in (("attn.c_attn", 1, 3), ("attn.c_proj", 1, 1),
                                        ("mlp.c_fc", 1, 4), ("mlp.c_proj", 4, 1)):
            model[f"{h}{name}.weight"] = tensor(wide_in * DIM, wide_out * DIM)
            model[f"{h}{name}.bias"] = tensor(wide_out * DIM)
    model["ln_f.weight"], model["ln_f.bias"] = tensor(DIM, mean=0.9, spread=0.09), tensor(DIM)
    return model


def norm(model, name, x):
    mean = sum(x) / DIM
    scale = 1 / math.sqrt(sum((v - mean)**2 for v in x) / DIM + 1e-5)
    return [(v - mean) * scale * g + b for v, g, b in zip(x, model[name + ".weight"][1], model[name + ".bias"][1])]


def linear(model, name, x):
    (n_in, n_out), w = model[name + ".weight"]
    return [b + sum(x[i] * w[i * n_out + o] for i in range(n_in))
            for o, b in enumerate(model[name + ".bias"][1])]


def gelu(x):
    return 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def softmax(x):
    most = max(x)
    e = [math.exp(v - most) for v in x]
    total = sum(e)
    return [v / total for v in e]


def attention(qkv):
    width, rows = DIM // HEADS, []
    for t in range(len(qkv)):
        row = []
        for head in range(HEADS):
            at = [slice(part * DIM + head * width, part * DIM + (head + 1) * width) for part in range(3)]
            p = softmax([sum(a * b for a, b in zip(qkv[t][at[0]], qkv[s][at[1]])) / math.sqrt(width)
                         for s in range(t + 1)])
            row += [sum(p[s] * qkv[s][at[2]][i] for s in range(t + 1)) for i in range(width)]
        rows.append(row)
    return rows


def loss(model, its=BYTE):
    """Mean over the positions of a sequence of one token, again and again."""
    row = lambda name, i: model[name][1][i * DIM:(i + 1) * DIM]
    add = lambda a, b: [x + y for x, y in zip(a, b)]
    x = [add(row("wte.weight", its), row("wpe.weight", t)) for t in range(SEQ)]
    for layer in range(LAYERS):
        h = f"h.{layer}."
        att = attention([linear(model, h + "attn.c_attn", norm(model, h + "ln_1", v)) for v in x])
        x = [add(v, linear(model, h + "attn.c_proj", a)) for v, a in zip(x, att)]
        x = [add(v, linear(model, h + "mlp.c_proj",
                           [gelu(u) for u in linear(model, h + "mlp.c_fc", norm(model, h + "ln_2", v))]))
             for v in x]
    total = 0
    for v in x:
        v = norm(model, "ln_f", v)
        logits = [sum(a * b for a, b in zip(v, row("wte.weight", token))) for token in range(model["wte.weight"][0][0])]
        total -= math.log(softmax(logits)[its])
    return total / SEQ


def data(folder, byte=BYTE):
    path = os.path.join(folder, "data")
    with open(path, "wb") as f:
        f.write(bytes([byte]) * 100)
    return ["--data", path]


def a_gpt2_file_is_computed_with_as_gpt2_does():
    rng = random.Random(3)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "model.safetensors")
        for prefix, positions, dtype in (("", SEQ, "F32"), ("transformer.", SEQ + 3, "F32"), ("", SEQ, "BF16")):
            model = gpt2(rng, positions)
            extra = {"h.0.attn.bias": ([1, 1, 2, 2], [1.0] * 4)}  # the mask that some files carry
            write(path, {prefix + name: t for name, t in {**model, **extra}.items()}, dtype)
            result = train(*MODEL, *data(folder), "--steps", 1, "--dtype", "fp32", "--init", path)
            assert abs(result.losses[0] - loss(model)) < 1e-4 * loss(model), (result.losses, loss(model))


def a_vocabulary_of_gpt2_s_size_has_its_tokens_of_bytes():
    """Ids from GPT-2's vocab.json: '!' is 0, '~' 93, a space (shown as \u0120) 220, a line feed (\u010a) 198, byte
    173, the last that is not shown as itself, 255, and 255 (\u00ff) 187."""
    model = gpt2(random.Random(11), vocab=GPT2_VOCAB)
    with tempfile.TemporaryDirectory() as folder:
        path, out = os.path.join(folder, "model.safetensors"), os.path.join(folder, "out.safetensors")
        write(path, model)
        flags = [*MODEL, "--vocab", GPT2_VOCAB, "--dtype", "fp32", "--init", path]
        for byte, token in ((33, 0), (126, 93), (32, 220), (10, 198), (173, 255), (255, 187)):
            result = train(*flags, *data(folder, byte), "--steps", 1, "--dump-init", out)
            expected = loss(model, token)
            assert abs(result.losses[0] - expected) < 1e-4 * expected, (byte, result.losses, expected)
        assert read(out)["wte.weight"] == read(path)["wte.weight"]
        refuse(1, "wte.weight is F32 (50257, 8), this model's is (256, 8) in F32, BF16 or F16; give --vocab 50257",
               "--init", path)
        refuse(2, "--vocab: takes 256 to", "--vocab", 255)


def what_was_dumped_begins_the_same_run():
    flags = [*MODEL, "--steps", 5]
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "init.safetensors")
        first = train(*flags, "--dump-init", path)
        for more in ([], ["--master", "split"], ["--offload", "none"], ["--init", folder]):
            again = train(*flags, "--init", path, *more)
            assert again.digest == first.digest and again.losses == first.losses, more
        tensors = read(path)
        assert tensors["h.1.mlp.c_fc.weight"][0] == [DIM, 4 * DIM], tensors["h.1.mlp.c_fc.weight"][0]
        assert len(tensors) == 2 + 12 * LAYERS + 2


def masters_are_exported_bit_for_bit():
    """What goes in as F32 comes out as F32, low halves of masters too."""
    rng = random.Random(5)
    with tempfile.TemporaryDirectory() as folder:
        path, out = os.path.join(folder, "in.safetensors"), os.path.join(folder, "out.safetensors")
        model = gpt2(rng, places=23)
        write(path, model)
        for more in (["--master", "split"], ["--dtype", "fp32"], ["--offload", "none"]):
            train(*MODEL, "--steps", 1, "--init", path, "--dump-init", out, *more)
            back, there = read(out), read(path)
            assert {k: v for k, v in back.items()} == there, more
            train(*MODEL, "--steps", 2, "--lr", 0, "--init", path, "--export", out, *more)
            assert read(out) == there, more
            train(*MODEL, "--steps", 2, "--init", path, "--export", out, *more)
            assert read(out) != there, more


def a_file_can_be_saved_over_itself():
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "m.safetensors")
        train(*MODEL, "--steps", 1, "--export", path)
        before = read(path)
        train(*MODEL, "--steps", 3, "--init", path, "--export", path)
        assert read(path).keys() == before.keys() and read(path) != before
        assert os.listdir(folder) == ["m.safetensors"]


def refuse(code, text, *flags):
    result = run(*MODEL, "--steps", 1, *flags, timeout=60)
    assert result.rc == code and text in result.err, (flags, result.rc, result.err)
    assert result.err.startswith("train_gpt: ") and len(result.err.splitlines()) == 1, result.err


def files_that_do_not_fit_are_refused_by_name():
    model = gpt2(random.Random(1))
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "x.safetensors")
        for name, shape, text in (("h.1.mlp.c_fc.weight", [4 * DIM, DIM], "h.1.mlp.c_fc.weight is F32 (32, 8)"),
                                  ("wte.weight", [VOCAB * DIM], "wte.weight is F32 (2048)"),
                                  ("wte.weight", [VOCAB, 4], "; give --dim 4"),
                                  ("wpe.weight", [SEQ - 1, DIM], "wpe.weight is F32 (5, 8), this model's is (6, 8) in F32, BF16 or F16; give --seq 5 or less")):
            write(path, {**model, name: (shape, [0.0] * math.prod(shape))})
            refuse(1, text, "--init", path)
        write(path, {k: v for k, v in model.items() if k != "h.0.ln_2.bias"})
        refuse(1, "no tensor 'h.0.ln_2.bias'; the nearest is", "--init", path)
        refuse(1, "none.safetensors", "--init", os.path.join(folder, "none.safetensors"))
        with open(path, "w", encoding="ascii") as f:
            f.write("no safetensors file")
        refuse(1, "no safetensors file", "--init", path)
        refuse(2, ".safetensors", "--export", os.path.join(folder, "weights.bin"))
        refuse(2, ".safetensors", "--dump-init", ".safetensors")
        refuse(2, "--plan-only", "--plan-only", "--export", path)
        refuse(2, "a folder that is there", "--export", "/nonexistent/x.safetensors")


main([a_gpt2_file_is_computed_with_as_gpt2_does, a_vocabulary_of_gpt2_s_size_has_its_tokens_of_bytes,
      what_was_dumped_begins_the_same_run, masters_are_exported_bit_for_bit, a_file_can_be_saved_over_itself,
      files_that_do_not_fit_are_refused_by_name])
