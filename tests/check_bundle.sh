#!/bin/sh
# The bundle for a bare machine, made, unpacked elsewhere and run with nothing of this machine but libc and a few
# tools: in a root of its own where that can be had, else with an empty environment. Once without a driver, once over
# the fakes of it and of cuBLAS.
#   check_bundle.sh SOURCE_ROOT
set -eu
root=$1
command -v nvcc >/dev/null || [ -x /usr/local/cuda/bin/nvcc ] || {
    echo "SKIP: nvcc is missing: there is no bundle"
    exit 77
}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT INT TERM

fail() {
    echo "FAILED: $*"
    exit 1
}

"$root/bench/make_bundle.sh" "$work/b.tar.gz"
mkdir -p "$work/jail/bin" "$work/jail/tmp" "$work/jail/proc" "$work/jail/sys" "$work/jail/dev"
tar -xzf "$work/b.tar.gz" -C "$work/jail"
bundle=$work/jail/haul-bundle

# What is looked for outside the bundle is libc.
for program in "$bundle"/bin/*; do
    [ "${program##*.}" != txt ] || continue
    ! env -i ldd "$program" | grep -v /haul-bundle/ |
        grep -vE '^\s*(linux-vdso|/lib64/ld-linux|lib(c|m|dl|rt|pthread)\.so)' || fail "$program needs what is not carried"
done
find "$bundle" -name 'libcuda*' -o -name 'libcublas*' -o -name 'libnccl*' | grep . && fail "a library of CUDA is carried"

# into_jail FILE...: with the libraries each needs
into_jail() {
    for file; do
        mkdir -p "$work/jail$(dirname "$file")"
        cp -L "$file" "$work/jail$file"
        ldd "$file" 2>/dev/null | grep -o '/[^ ]*' | while read -r lib; do
            [ -e "$work/jail$lib" ] && continue
            mkdir -p "$work/jail$(dirname "$lib")"
            cp -L "$lib" "$work/jail$lib"
        done
    done
}
base() {
    for name in libc.so.6 libm.so.6 libdl.so.2 librt.so.1 libpthread.so.0; do
        ldconfig -p | sed -n "s|.*$name (libc6,x86-64.*=> ||p" | head -n 1
    done
}
for tool in sh awk sed cat tr date env mkdir dirname grep tail head uname rm; do
    real=$(readlink -f "$(command -v $tool)")
    into_jail "$real"
    [ -e "$work/jail/bin/$tool" ] || ln -s "$real" "$work/jail/bin/$tool"
done
into_jail $(base)

if mount -t proc proc "$work/jail/proc" 2>/dev/null; then
    trap 'umount "$work/jail/sys" "$work/jail/proc"; rm -rf --one-file-system "$work"' EXIT INT TERM
    mount -t sysfs -o ro sysfs "$work/jail/sys"
    mknod -m 666 "$work/jail/dev/null" c 1 3
    outside=
else
    outside=$work/jail
fi

# run_quick VARIABLE...: the bundle's run, with nothing in its environment but these
run_quick() {
    rc=0
    if [ -z "$outside" ]; then
        env -i PATH=/bin "$(command -v chroot)" "$work/jail" /bin/env "$@" /bin/sh /haul-bundle/run --quick >"$work/said" 2>&1 || rc=$?
    else
        env -i PATH=/usr/bin:/bin "$@" "$bundle/run" --quick >"$work/said" 2>&1 || rc=$?
    fi
    cat "$work/said"
    [ $rc -eq 0 ] || { grep '^not ok' "$bundle"/results/*.tap; fail "run ended with $rc"; }
    grep -q '^passed *host.engine' "$work/said" || fail "the part without a GPU has not run"
    grep -q ' 0 failed, ' "$work/said" || fail "something failed"
}

run_quick
[ "$(grep -c 'no CUDA driver' "$work/said")" -eq 1 ] || fail "no CUDA driver is not said, or not once"
python3 - "$bundle/results/results.json" <<'EOF'
import json, sys
found = json.load(open(sys.argv[1]))
assert found["failed"] == 0 and "no CUDA driver" in found["no_gpu"], found["no_gpu"]
parts = {part["name"]: part for part in found["parts"]}
assert parts["adam"]["output"] and parts["gpu.gpu_engine"]["result"] == "skipped"
EOF

# What runs where there is a GPU, over the fakes of driver and cuBLAS: that it runs, and no figure.
fakes=$root/build/bundle/tests/fake_cuda
ninja -C "$root/build/bundle" tests/fake_cuda/libcuda.so.1 tests/fake_cuda/libcublas.so.13
mkdir "$work/jail/fakes"
cp -L "$fakes/libcuda.so.1" "$fakes/libcublas.so.13" "$work/jail/fakes"
into_jail "$fakes/libcublas.so.13"
run_quick LD_LIBRARY_PATH="$outside/fakes"
python3 - "$bundle/results/results.json" <<'EOF'
import json, sys
found = json.load(open(sys.argv[1]))
assert found["no_gpu"] == "", found["no_gpu"]
parts = {part["name"]: part for part in found["parts"]}
for suite in ("cuda_device", "cuda_stream", "cuda_kernel", "cuda_gpu", "gpu_engine", "gpu_overlap"):
    assert parts["gpu." + suite]["result"] == "passed", parts["gpu." + suite]
assert parts["link"]["output"]["ratio_to_hostalloc"] > 0, parts["link"]
assert [row["offload"] for row in parts["offloads"]["output"]["rows"]] == ["none", "optimizer", "all"], parts["offloads"]
assert parts["capped: peak of device memory over the cap"]["result"] == "passed", parts
EOF
