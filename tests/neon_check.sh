#!/bin/sh
# The NEON kernels, cross-compiled and run under emulation: the suites of cpu_adam, and the same bits as
# this machine's best variant. Exit 77 (a skip) when the cross compiler or the emulator is missing.
#   neon_check.sh SOURCE_ROOT WORK_DIR
set -eu
root=$1
work=$2/neon_check.$$
cross=aarch64-linux-gnu-gcc
emulator=$(command -v qemu-aarch64 || command -v qemu-aarch64-static || true)

skip() {
    echo "SKIP: $1 is missing (Debian: apt-get install gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user)"
    exit 77
}
command -v $cross >/dev/null || skip $cross
[ -n "$emulator" ] || skip qemu-aarch64
mkdir -p "$work"
trap 'rm -rf "$work"' EXIT
echo 'int main(void) { return 0; }' | $cross -static -fopenmp -x c - -o "$work/probe" 2>/dev/null ||
    skip "libc6-dev-arm64-cross"

flags="-std=gnu11 -O2 -D_GNU_SOURCE -DHAUL_VERSION=\"0\" -DHL_SYS_FAULTS -DHAUL_PLAIN_RUNNER -ffp-contract=off -fno-math-errno -fopenmp"
for dir in include lib/base cpu_adam tests; do
    flags="$flags -I$root/$dir"
done
room="$root/cpu_adam/arith.c $root/cpu_adam/kernel_c.c $root/cpu_adam/kernel_choice.c
    $root/cpu_adam/norm_parts.c $root/cpu_adam/norm_tree.c $root/cpu_adam/optim_check.c $root/cpu_adam/optim_update.c
    $root/cpu_adam/team.c $root/lib/base/fail.c $root/lib/base/cpu.c $root/lib/base/wait.c
    $root/lib/base/clock.c $root/tests/neon_topo.c"

build() { # compiler kernels... : objects of the room
    compiler=$1
    shift
    dir=$work/$(basename "$compiler")
    mkdir -p "$dir"
    for src in $room $root/tests/plain_runner.c "$@"; do
        args=
        case $src in
        *avx2.c) args="-mavx2 -mfma -mf16c" ;;
        *avx512.c) args="-mavx512f -mavx512bw -mavx512dq -mavx512vl -mfma -mf16c" ;;
        esac
        $compiler $flags $args -c "$src" -o "$dir/$(basename "$src" .c).o"
    done
}

link() { # compiler program source
    dir=$work/$(basename "$1")
    runner="$dir/plain_runner.o"
    others=$(ls "$dir"/*.o | grep -v plain_runner)
    case $3 in
    *adam_digest.c) runner= ;;
    esac
    $1 $flags $4 "$3" $runner $others -o "$2" -lm -lpthread 2>"$work/link.log" || { cat "$work/link.log"; exit 1; }
}

build $cross "$root/cpu_adam/kernel_neon.c"
for suite in adam_bits adam_convert norm optim optim_errors; do
    link $cross "$work/$suite" "$root/tests/test_$suite.c" -static
    "$emulator" "$work/$suite" >"$work/$suite.tap" || { cat "$work/$suite.tap"; exit 1; }
    echo "$suite: $(grep -c '^ok' "$work/$suite.tap") cases passed under emulation"
done

link $cross "$work/digest_neon" "$root/tests/adam_digest.c" -static
"$emulator" "$work/digest_neon" >"$work/neon.txt" 2>"$work/neon.err"
grep -q 'variant neon' "$work/neon.err"
case $(uname -m) in
x86_64) build cc "$root/cpu_adam/kernel_avx2.c" "$root/cpu_adam/kernel_avx512.c" ;;
aarch64) build cc "$root/cpu_adam/kernel_neon.c" ;;
*) exit 0 ;;
esac
link cc "$work/digest_here" "$root/tests/adam_digest.c" ""
"$work/digest_here" >"$work/here.txt"
cmp "$work/neon.txt" "$work/here.txt"
echo "$(wc -l <"$work/here.txt") digests are the same here and in NEON"
