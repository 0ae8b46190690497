#!/bin/sh
# Each patch here takes one wait between streams out of the engine. For each: apply it to a copy of the
# tree, build, and require that the suite that the patch names fails.
#   run_mutants.sh SOURCE_ROOT [NAME]...
# Exit 77 (a skip) where the suites cannot be built.
set -eu
root=$1
shift
command -v nvcc >/dev/null || [ -x /usr/local/cuda/bin/nvcc ] || {
    echo "SKIP: nvcc is missing: the suites over the fake driver are not built"
    exit 77
}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT INT TERM
mkdir "$work/tree"
(cd "$root" && git ls-files -z --cached --others --exclude-standard 2>/dev/null || find . -type f -not -path './.git/*' -print0) |
    (cd "$root" && tar -c --null --files-from=- --ignore-failed-read 2>/dev/null) | tar -x -C "$work/tree"
targets="tests/test_checkpoint tests/test_checkpoint_waits tests/test_cuda_order tests/test_engine_ranks tests/fake_cuda/libcuda.so.1"

build() {
    ninja -C "$work/build" $targets >"$work/log" 2>&1 || {
        cat "$work/log"
        echo "FAILED: $1 does not build"
        exit 1
    }
}

# catches SUITE CASE: the suite fails, or hangs. $how: which, and after how long
catches() {
    begin=$(date +%s) rc=0
    timeout 200 "$work/build/tests/$1" "$2" >"$work/log" 2>&1 || rc=$?
    how="failed after $(($(date +%s) - begin)) s"
    [ $rc -ne 124 ] || how="hung"
    [ $rc -ne 0 ]
}

meson setup "$work/build" "$work/tree" -Dplain_runner=true -Dcuda=enabled \
    --buildtype=debugoptimized >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
build "the tree itself"
if catches test_cuda_order ""; then
    cat "$work/log"
    echo "FAILED: the suite fails on the tree itself"
    exit 1
fi

failed=0 n=0
for patch in "$root"/tests/mutants/*.patch; do
    name=$(basename "$patch" .patch)
    [ $# -eq 0 ] || case " $* " in *" $name "*) ;; *) continue ;; esac
    n=$((n + 1))
    patch -s -p1 -d "$work/tree" <"$patch" || {
        echo "FAILED: $name does not apply any more: renew it"
        exit 1
    }
    build "$name"
    set -- $(sed -n 's/^run: //p' "$patch") -- "$@"
    if catches "$1" "$2"; then
        echo "caught: $name ($1 $2 $how)"
    else
        echo "NOT CAUGHT: $name ($1 $2)"
        failed=$((failed + 1))
    fi
    while [ "$1" != -- ]; do shift; done
    shift
    patch -s -R -p1 -d "$work/tree" <"$patch"
done
echo "$n mutants, $failed not caught"
[ "$failed" -eq 0 ]
