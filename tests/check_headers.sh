#!/bin/sh
# Every header compiles alone: the public ones as C11 and C++17, all others as this project's C.
#   check_headers.sh SOURCE_ROOT CC [CXX]
set -eu
root=$1 cc=$2 cxx=${3-}
rooms="-I$root/include -I$root/tests"
for dir in "$root"/lib/* "$root/io" "$root/cpu_adam" "$root/tools" "$root/examples/train_gpt"; do
    [ ! -d "$dir" ] || rooms="$rooms -I$dir"
done
flags="-Wall -Wextra -Werror -Wno-unused-parameter -fsyntax-only"
failed=0 n=0
# Without MPI there is no libhaul-mpi to look at.
mpi=$(mpicc --showme:compile 2>/dev/null | sed 's/-I/-isystem /g') || mpi=

# compile what header command...
compile() {
    what=$1 header=$2
    shift 2
    n=$((n + 1))
    if ! printf '#include "%s"\n' "$header" | "$@" -; then
        echo "FAILED: $header alone as $what"
        failed=$((failed + 1))
    fi
}

for h in "$root"/include/haul/*.h; do
    case $h in */mpi.h) [ -n "$mpi" ] || continue ;; esac
    compile C11 "haul/${h##*/}" $cc -std=c11 -pedantic $flags -I"$root/include" $mpi -x c
    [ -z "$cxx" ] ||
        compile C++17 "haul/${h##*/}" $cxx -std=c++17 -pedantic $flags -I"$root/include" $mpi -x c++
done
for h in $(find "$root/lib" "$root/io" "$root/cpu_adam" "$root/tools" -name '*.h' ! -name '*.inc.h'); do
    # Without the toolkit's cuda.h there is no CUDA back end to look at.
    if grep -q 'include <cuda.h>\|"device_cuda.h"\|"cuda_driver.h"' "$h" &&
        ! printf '#include <cuda.h>\n' | $cc -fsyntax-only -x c - 2>/dev/null; then
        continue
    fi
    case $h in */comm_mpi.h) [ -n "$mpi" ] || continue ;; esac
    compile C "$h" $cc -std=gnu11 -D_GNU_SOURCE $flags $rooms $mpi -x c
done
echo "$n compilations, $failed failed"
[ "$failed" -eq 0 ]
