#!/bin/sh
# Make a tar that a bare machine with a GPU unpacks and runs: the command, train_gpt for both devices, the suites
# and benches of a GPU, and the shared libraries they need but for libc, the driver, cuBLAS and NCCL.
#   bench/make_bundle.sh [FILE.tar.gz]
# Builds in build/bundle. docs/gpu.md says what to do with it.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
out=${1:-$root/build/haul-bundle.tar.gz}
build=$root/build/bundle
name=haul-bundle
host_suites="engine stash device device_stream norm optim"
gpu_suites="cuda_device cuda_stream cuda_kernel cuda_gpu gpu_engine gpu_overlap"

# With the old kind of run path, that of an executable serves for what its libraries need, too.
[ -f "$build/build.ninja" ] || meson setup "$build" "$root" --buildtype=release -Dtests=enabled \
    -Dplain_runner=true -Dcuda=enabled \
    -Dc_link_args='-Wl,--disable-new-dtags,-rpath,$ORIGIN/../lib' >"$build.log" ||
    { cat "$build.log"; exit 1; }
rm -f "$build.log"
programs="tools/haul examples/train_gpt/train_gpt examples/train_gpt/train_gpt_cuda"
for suite in $host_suites $gpu_suites; do
    programs="$programs tests/test_$suite"
done
ninja -C "$build" $programs examples/train_gpt/haul-text.txt

mkdir -p "$root/build"
stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT INT TERM
mkdir -p "$stage/$name/bin" "$stage/$name/lib" "$stage/$name/tests"
for program in $programs; do
    strip -o "$stage/$name/bin/${program##*/}" "$build/$program"
    ldd "$build/$program" | awk '$2 == "=>" && $3 ~ /^\// { print $3 }'
done | sort -u | while read -r lib; do
    case ${lib##*/} in
    ld-linux* | libc.so* | libm.so* | libdl.so* | librt.so* | libpthread.so* | libresolv.so*) ;;
    libcuda.so* | libcublas* | libnccl* | libcudart*) ;;
    *) strip --strip-unneeded -o "$stage/$name/lib/${lib##*/}" "$lib" ;;
    esac
done
cp "$build/examples/train_gpt/haul-text.txt" "$stage/$name/bin"
cp "$root/tests/train_gpt_cuda.py" "$root/tests/train_gpt_runner.py" "$stage/$name/tests"
cp "$root/bench/bundle_run.sh" "$stage/$name/run"
cp "$root/docs/gpu.md" "$root/LICENSE" "$stage/$name"
sed -n "s/.*version: '\([^']*\)'.*/haul \1/p;/version:/q" "$root/meson.build" >"$stage/$name/VERSION"
# The newest version of libc that anything here asks for.
objdump -T "$stage/$name"/bin/* "$stage/$name"/lib/* 2>/dev/null |
    sed -n 's/.*[( ]GLIBC_\([0-9.]*\).*/\1/p' | sort -V | tail -n 1 >"$stage/$name/GLIBC"
echo "$host_suites" >"$stage/$name/tests/host_suites"
echo "$gpu_suites" >"$stage/$name/tests/gpu_suites"
chmod 755 "$stage/$name/run"
tar -C "$stage" --owner=0 --group=0 --sort=name -czf "$out" "$name"
bytes=$(wc -c <"$out")
echo "$out: $bytes bytes, for Linux x86-64 with glibc $(cat "$stage/$name/GLIBC") or newer"
[ "$bytes" -le 60000000 ] || { echo "make_bundle: over 60 MB" >&2; exit 1; }
