#!/bin/sh
# 13B on 4 cards of 24 GB, at one hundredth: a GPT of 130M parameters on 4 ranks, each with an emulated device
# of 240 MB, on a node with 1.28 GB of host memory for them, the rest on disk. A few minutes on two cores.
#
# usage: 13b_scaled.sh [train_gpt [scratch folder [steps]]]
#
# Ends with a table: tier, what was planned and measured over all ranks, the budget, and the share of it.
set -eu
program=${1:-train_gpt}
folder=${2:-.}
steps=${3:-20}
log=$(mktemp)
trap 'rm -f "$log"' EXIT

as_root=
[ "$(id -u)" -ne 0 ] || as_root=--allow-run-as-root
mpirun $as_root --oversubscribe --mca btl_vader_single_copy_mechanism none -n 4 "$program" --layers 18 --dim 768 --heads 12 --seq 64 --batch 8 --accum 2 \
    --steps "$steps" --lr 0.0006 --device-mem 240MB --host-mem 1.28GB --nvme "$folder" --nvme-mem 10GB \
    --master split --jsonl "$log"
python3 - "$log" <<'END'
import json, sys
lines = [json.loads(line) for line in open(sys.argv[1])]
losses = [line["loss"] for line in lines[:-1]]
summary, ranks = lines[-1], 4
budget = {"device": 240000000 * ranks, "host": 1280000000, "nvme": 10000000000}
print(f"\n130M parameters, 4 ranks (emulated): loss {losses[0]:.3f} to {losses[-1]:.3f}, bytes over all ranks")
print(f"{'tier':8} {'planned':>14} {'measured':>14} {'budget':>14} {'share':>6}")
for tier, most in budget.items():
    planned, peak = summary["planned"][tier] * ranks, summary["peaks"][tier] * ranks
    print(f"{tier:8} {planned:14d} {peak:14d} {most:14d} {peak / most:6.0%}")
    if planned != peak or peak > most:
        sys.exit(f"{tier}: {peak} bytes measured, {planned} planned, {most} allowed")
if len(losses) > 1 and losses[-1] >= losses[0]:
    sys.exit("the loss does not fall")
END
