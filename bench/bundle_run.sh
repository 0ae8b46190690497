#!/bin/sh
# Suites and benches of this bundle, on the machine where it lies:
#   ./run [--quick] [FOLDER]
# Into FOLDER (default: results) goes what each part printed, and results.json with all of it. --quick: small
# sizes, whose figures mean nothing. Needs a shell, awk and sed; python3 for one part. Ends with
# `N passed, N failed, N skipped`, and with 1 when something failed.
set -u
here=$(cd "$(dirname "$0")" && pwd) || exit 1
quick=
[ "${1:-}" != --quick ] || { quick=1; shift; }
mkdir -p "${1:-$here/results}" || exit 1
out=$(cd "${1:-$here/results}" && pwd) || exit 1
bin=$here/bin
passed=0 failed=0 skipped=0
: >"$out/parts"

# one line as the inside of a JSON string
escape() {
    printf '%s' "$1" | tr -d '\000-\037' | sed 's/\\/\\\\/g; s/"/\\"/g'
}

# end NAME RESULT WHY: count a part, and keep its line for results.json
end() {
    case $2 in
    passed) passed=$((passed + 1)) ;;
    failed) failed=$((failed + 1)) ;;
    skipped) skipped=$((skipped + 1)) ;;
    esac
    printf '%-8s %s%s\n' "$2" "$1" "${3:+: $3}"
    printf '%s\t%s\t%s\n' "$1" "$2" "$(escape "$3")" >>"$out/parts"
}

# part NAME SUFFIX COMMAND...: its output to NAME.SUFFIX. 0 passed, 77 skipped, all else failed.
part() {
    name=$1 file=$out/$1.$2 begin=$(date +%s)
    shift 2
    printf '%s\n' "$*" | sed "s|$here/||g" >"$out/$name.command"
    (cd "$out" && "$@") >"$file" 2>"$out/$name.err"
    rc=$?
    took="$(($(date +%s) - begin)) s"
    case $rc in
    0) end "$name" passed "$took" ;;
    77) end "$name" skipped "$(tail -n 1 "$out/$name.err")" ;;
    *) end "$name" failed "exit $rc after $took; $(tail -n 1 "$out/$name.err")" ;;
    esac
    [ "$rc" -eq 0 ]
}

# suite NAME ENVIRONMENT...: a program that prints TAP; what it skipped is said
suite() {
    name=$1
    shift
    part "$name" tap env "$@" "$bin/test_${name#*.}" &&
        grep -c '^ok .*# SKIP' "$out/$name.tap" >"$out/count" &&
        echo "         of these $(cat "$out/count") cases skipped, see $name.tap"
    rm -f "$out/count"
}

# claim NAME VALUE <|> BOUND: a figure and what it is held to; none where the figure is missing
claim() {
    [ -n "$2" ] || { end "$1" skipped "not measured"; return; }
    if awk -v a="$2" -v b="$4" -v less="$3" 'BEGIN { exit !(less == "<" ? a + 0 < b + 0 : a + 0 >= b + 0) }'; then
        end "$1" passed "$2, $3 $4"
    else
        end "$1" failed "$2, not $3 $4"
    fi
}

# number FILE KEY ANCHOR...: what stands behind the first "KEY": after the anchors, where it is a number
number() {
    [ -f "$1" ] || return 0
    text=$(cat "$1") key="\"$2\":"
    shift 2
    for anchor; do
        text=${text#*"$anchor"}
    done
    case $text in *"$key"*) ;; *) return 0 ;; esac
    text=${text#*"$key"}
    printf '%s\n' "${text%%[,\}]*}" | sed -n '1s/^ *\([-+.0-9eE]*\) *$/\1/p'
}

need_glibc=$(cat "$here/GLIBC")
if ! "$bin/haul" --version >/dev/null 2>"$out/start.err"; then
    echo "run: bin/haul does not start here: $(tail -n 1 "$out/start.err")" >&2
    echo "run: this bundle needs Linux on x86-64 with glibc $need_glibc or newer" >&2
    exit 3
fi
rm -f "$out/start.err"

echo "== this machine"
part doctor json "$bin/haul" doctor --json

echo "== without a GPU"
for s in $(cat "$here/tests/host_suites"); do
    suite "host.$s"
done
if [ -n "$quick" ]; then
    part train_host txt "$bin/train_gpt" --steps 4 --layers 2 --dim 32 --heads 2 --seq 32 --digest
    part adam json "$bin/haul" bench adam --json --elems 65536
else
    part train_host txt "$bin/train_gpt" --steps 100 --digest
    part adam json "$bin/haul" bench adam --json
fi

# The GPU's part: what is missing is said once, and named for each.
no_gpu=
if ! "$bin/haul" bench link --device cuda --size 64KiB --repeats 1 --json >"$out/probe" 2>"$out/probe.err"; then
    no_gpu=$(sed 's/^haul[^:]*: //' "$out/probe.err" | head -n 1)
fi
rm -f "$out/probe" "$out/probe.err"

link() {
    size=256MiB
    [ -z "$quick" ] || size=256KiB
    part link json "$bin/haul" bench link --device cuda --size $size --json
    [ -n "$quick" ] || claim "link: registered pool to cuMemHostAlloc, the worse direction" \
        "$(number "$out/link.json" ratio_to_hostalloc)" '>=' 0.98
}

# Gigabytes: of the first GPU, and of host memory that can be had.
gpu_gb=$(sed -n 's/.*"0: [^"]*, \([0-9.]*\) GB, driver.*/\1/p' "$out/doctor.json" | head -n 1)
host_gb=$(awk '/^MemAvailable/ { printf "%d", $2 / 1e6 }' /proc/meminfo)
at_least() {
    awk -v a="${1:-0}" -v b="$2" 'BEGIN { exit !(a >= b) }'
}

# Every placement beside the device, at a number of tokens above the ridge.
offloads() {
    if [ -n "$quick" ]; then
        set -- --layers 2 --dim 32 --heads 2 --seq 32 --batch 4 --steps 2
    elif at_least "$gpu_gb" 60 && at_least "$host_gb" 64; then
        set -- --layers 24 --dim 2048 --heads 16 --seq 1024 --batch 32 --steps 5
    else
        set -- --layers 24 --dim 1024 --heads 16 --seq 1024 --batch 16 --steps 5
    fi
    part offloads json "$bin/train_gpt" --device cuda --bench --json "$@"
    [ -z "$quick" ] || return 0
    claim "offloads: penalty of --offload optimizer" "$(number "$out/offloads.json" penalty '"offload":"optimizer"')" '<' 0.05
    for row in optimizer all; do
        for lane in h2d d2h; do
            claim "offloads.$row: part of $lane that compute did not wait for" \
                "$(number "$out/offloads.json" $lane "\"offload\":\"$row\"" '"hidden":{')" '>=' 0.95
        done
    done
}

# A model whose 16 bytes a parameter do not fit the memory that it is given.
capped() {
    if [ -n "$quick" ]; then
        cap=80000000 params=6291456
        set -- --layers 8 --dim 256 --heads 4 --seq 16 --batch 2
    elif at_least "$host_gb" 48; then
        cap=24000000000 params=1887436800
        set -- --layers 24 --dim 2560 --heads 20 --seq 512 --batch 8
    else
        cap=4000000000 params=301989888
        set -- --layers 24 --dim 1024 --heads 16 --seq 512 --batch 8
    fi
    part capped txt "$bin/train_gpt" --device cuda --steps 3 --device-mem $cap --jsonl capped.jsonl "$@"
    claim "capped: 16 bytes a parameter over the cap" "$(awk -v p=$params -v c=$cap 'BEGIN { print 16 * p / c }')" '>=' 1
    claim "capped: peak of device memory over the cap" \
        "$(sed -n '$s/.*"peaks":{"device":\([0-9]*\).*/\1/p' "$out/capped.jsonl" 2>/dev/null |
            awk -v c=$cap '{ print $1 / c }')" '<' 1.000000001
}

# What the sanitizer finds makes a suite fail.
sanitized() {
    for s in cuda_kernel gpu_engine cuda_gpu; do
        name=sanitized.$s
        if command -v compute-sanitizer >/dev/null; then
            part "$name" txt env HAUL_TEST_GPU=1 compute-sanitizer --error-exitcode 99 "$bin/test_$s"
        else
            end "$name" skipped "compute-sanitizer is not here"
        fi
    done
}

program_suite() {
    if command -v python3 >/dev/null; then
        part gpu.train_gpt tap env PYTHONDONTWRITEBYTECODE=1 python3 "$here/tests/train_gpt_cuda.py" "$bin/train_gpt" - gpu
    else
        end gpu.train_gpt skipped "python3 is not here"
    fi
}

echo "== on the GPU"
if [ -z "$no_gpu" ]; then
    for s in $(cat "$here/tests/gpu_suites"); do
        suite "gpu.$s" HAUL_TEST_GPU=1
    done
    program_suite
    link
    offloads
    capped
    sanitized
else
    echo "$no_gpu"
    for s in $(cat "$here/tests/gpu_suites") train_gpt; do
        end "gpu.$s" skipped "no GPU"
    done
    for s in link offloads capped sanitized; do
        end "$s" skipped "no GPU"
    done
fi

# ---- results.json ----
{
    printf '{"version":"%s","date":"%s","kernel":"%s","quick":%s,"no_gpu":"%s","passed":%d,"failed":%d,"skipped":%d,"parts":[' \
        "$(escape "$(cat "$here/VERSION")")" "$(date -u +%Y-%m-%dT%H:%M:%SZ)" "$(escape "$(uname -srm)")" \
        "$([ -n "$quick" ] && echo true || echo false)" "$(escape "$no_gpu")" $passed $failed $skipped
    comma=
    while IFS="$(printf '\t')" read -r name result why; do
        printf '%s\n{"name":"%s","result":"%s","why":"%s"' "$comma" "$(escape "$name")" "$result" "$why"
        [ ! -f "$out/$name.command" ] || printf ',"command":"%s"' "$(escape "$(cat "$out/$name.command")")"
        if [ "$result" = passed ] && [ -f "$out/$name.json" ]; then
            printf ',"output":'
            cat "$out/$name.json"
        fi
        printf '}'
        comma=,
    done <"$out/parts"
    printf ']}\n'
} >"$out/results.json"
rm -f "$out/parts"
printf '\n%s\n%d passed, %d failed, %d skipped\n' "$out/results.json" $passed $failed $skipped
[ $failed -eq 0 ]
