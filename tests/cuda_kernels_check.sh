#!/bin/sh
# What nvcc makes of kernels.cu: no spills; 128-bit loads and stores and fused multiply-adds where the
# reference has fmaf; denormals flushed by every operation, no approximate operations, no barriers, no shuffles.
#   cuda_kernels_check.sh SOURCE_ROOT
# Exit 77 (a skip) without nvcc. The machine code is looked at where cuobjdump is on PATH.
set -eu
src=$1/lib/device/kernels.cu
PATH=$PATH:/usr/local/cuda/bin
command -v nvcc >/dev/null || {
    echo "SKIP: nvcc is missing"
    exit 77
}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT INT TERM
flags="-O3 -std=c++17 -ftz=true -prec-div=true -prec-sqrt=true -fmad=false"
failed=0

wrong() {
    echo "FAILED: $*"
    failed=$((failed + 1))
}

# of KERNEL in FILE (one kernel after the other, each begun by a line that matches HEAD): lines with PATTERN
count() {
    awk -v name="$2" -v head="$3" -v pattern="$4" '
        $0 ~ head { on = $0 ~ (name "($|[^A-Za-z0-9_])") }
        on && $0 ~ pattern { n++ }
        END { print n + 0 }' "$1"
}

# at least MIN of PATTERN
least() {
    n=$(count "$1" "$2" "$3" "$4")
    [ "$n" -ge "$5" ] || wrong "$2 has $n of $4, at least $5 expected (${1##*/})"
}

for sm in 80 86 89 90 100 120; do
    nvcc $flags -Xptxas -v -gencode "arch=compute_$sm,code=sm_$sm" -cubin -o "$work/$sm.cubin" "$src" \
        >"$work/$sm.log" 2>&1 || { cat "$work/$sm.log"; exit 1; }
    kernels=$(grep -c 'spill stores' "$work/$sm.log")
    spills=$(grep 'spill stores' "$work/$sm.log" | grep -vc '0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads' || true)
    [ "$kernels" -eq 30 ] || wrong "sm_$sm: $kernels kernels, 30 expected"
    [ "$spills" -eq 0 ] || wrong "sm_$sm: $spills kernels spill or use a stack"
done

nvcc $flags -gencode arch=compute_80,code=compute_80 -ptx -o "$work/ptx" "$src"
for bad in '\(fma\|mul\|add\|div\|sqrt\)\.rn\.f32' '\.approx' 'bar\.' 'shfl' 'vote' 'ld\.local' 'st\.local'; do
    ! grep -q "$bad" "$work/ptx" || wrong "PTX has $bad"
done

# check FILE HEAD LOAD STORE FMA
check() {
    for to in FP32 BF16 FP16; do
        for from in FP32 BF16 FP16; do
            least "$1" "hl_convert_${to}_$from" "$2" "$3" 1
            least "$1" "hl_convert_${to}_$from" "$2" "$4" 1
        done
        least "$1" "hl_accumulate_$to" "$2" "$3" 3
        least "$1" "hl_accumulate_$to" "$2" "$4" 2
        least "$1" "hl_sum_$to" "$2" "$3" 2
        least "$1" "hl_sum_$to" "$2" "$4" 1
        least "$1" "hl_sumsq_$to" "$2" "$3" 2
        least "$1" "hl_sumsq_$to" "$2" "$5" 16
        for param in NONE BF16 FP16 SPLIT; do
            least "$1" "hl_optim_${to}_$param" "$2" "$3" 7
            least "$1" "hl_optim_${to}_$param" "$2" "$4" 6
            # six fmaf an element, eight elements
            least "$1" "hl_optim_${to}_$param" "$2" "$5" 48
        done
    done
}

check "$work/ptx" '\.entry' 'ld\.global.*\.v4' 'st\.global.*\.v4' 'fma\.rn\.ftz\.f32'
if command -v cuobjdump >/dev/null; then
    for sm in 80 90; do
        cuobjdump -sass "$work/$sm.cubin" >"$work/$sm.sass"
        check "$work/$sm.sass" 'Function :' 'LDG[.]E[.A-Z]*[.]128' 'STG[.]E[.A-Z]*[.]128' 'FFMA'
        ! grep -q 'BAR\.\|SHFL\|LDL\|STL' "$work/$sm.sass" || wrong "sm_$sm: barrier, shuffle or local memory"
    done
    echo "machine code of sm_80 and sm_90 looked at"
else
    echo "cuobjdump is missing: PTX looked at, machine code not"
fi
echo "$failed wrong"
[ "$failed" -eq 0 ]
