#!/bin/sh
# What nvcc makes of examples/train_gpt/gpt_kernels.cu: no spills, no stack, no barriers, no shuffles.
#   gpt_kernels_check.sh SOURCE_ROOT
# Exit 77 (a skip) without nvcc.
set -eu
src=$1/examples/train_gpt/gpt_kernels.cu
want=$(grep -c '^    X(' "$1/examples/train_gpt/cuda_gpt_kernels.h")
PATH=$PATH:/usr/local/cuda/bin
command -v nvcc >/dev/null || {
    echo "SKIP: nvcc is missing"
    exit 77
}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT INT TERM
failed=0

wrong() {
    echo "FAILED: $*"
    failed=$((failed + 1))
}

for sm in 80 86 89 90 100 120; do
    nvcc -O3 -std=c++17 -Xptxas -v -gencode "arch=compute_$sm,code=sm_$sm" -cubin -o "$work/cubin" "$src" \
        >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
    kernels=$(grep -c 'spill stores' "$work/log")
    spills=$(grep 'spill stores' "$work/log" | grep -vc '0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads' || true)
    [ "$kernels" -eq "$want" ] || wrong "sm_$sm: $kernels kernels, $want expected"
    [ "$spills" -eq 0 ] || wrong "sm_$sm: $spills kernels spill or use a stack"
done
nvcc -O3 -std=c++17 -gencode arch=compute_80,code=compute_80 -ptx -o "$work/ptx" "$src"
for bad in 'bar\.' 'shfl' 'vote' 'atom' 'ld\.local' 'st\.local'; do
    ! grep -q "$bad" "$work/ptx" || wrong "PTX has $bad"
done
echo "$want kernels, $failed wrong"
[ "$failed" -eq 0 ]
