#!/bin/sh
# What `meson install` puts down is enough: the example of README.md builds with pkg-config alone, shared
# and static, and prints what AdamW's formula gives; so do the installed examples, and run; the command runs.
#   check_install.sh SOURCE_ROOT BUILD_ROOT CC
set -eu
root=$1 build=$2 cc=$3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

meson install -C "$build" --no-rebuild --quiet --destdir "$work/root"
pc=$(find "$work/root" -name haul.pc)
# In the default prefix both are found without being told where they are.
where=${pc%/haul.pc}
where=${where#"$work/root"}
[ -e /etc/debian_version ] || where=elsewhere
case $where in
/usr/local/*)
    case :$(pkg-config --variable=pc_path pkg-config): in
    *":$where:"*) ;;
    *) echo "FAILED: haul.pc is in $where, where pkg-config does not look" && exit 1 ;;
    esac
    grep -qrx "${where%/pkgconfig}" /etc/ld.so.conf /etc/ld.so.conf.d ||
        { echo "FAILED: libhaul.so is in ${where%/pkgconfig}, where ldconfig does not look" && exit 1; }
    ;;
esac
export PKG_CONFIG_PATH="${pc%/*}" PKG_CONFIG_SYSROOT_DIR="$work/root"
libdir=$(pkg-config --variable=libdir haul)
case $libdir in "$work"*) ;; *) libdir=$work/root$libdir ;; esac

sed -n '/^```c$/,/^```$/{/^```/d;p}' "$root/README.md" >"$work/example.c"
# The README's own lines; a sysroot must not reach the system's packages.
$cc "$work/example.c" -o "$work/shared" $(pkg-config --cflags --libs haul)
static=$(pkg-config --static --cflags --libs haul | sed 's/-lhaul/-l:libhaul.a/')
$cc "$work/example.c" -o "$work/static" $static

check() {
    said=$("$@")
    echo "$said"
    case $said in
    *"0.900 1.100 1.000"*) ;;
    *) echo "FAILED: expected 0.900 1.100 1.000" && exit 1 ;;
    esac
}
export LD_LIBRARY_PATH="$libdir"
check "$work/shared"
unset LD_LIBRARY_PATH
check "$work/static"
case $(ldd "$work/static") in *libhaul*) echo "FAILED: the static example needs libhaul.so" && exit 1 ;; esac

# libhaul-mpi, where it is built: a program that opens a communicator needs MPI's compiler and haul-mpi.pc.
if [ -n "$(find "$work/root" -name haul-mpi.pc)" ]; then
    cat >"$work/ranks.c" <<'END'
#include <haul/mpi.h>
#include <stdio.h>
int main(void)
{
    struct haul_device *dev = NULL;
    struct haul_comm *comm = NULL;
    int rc = haul_device_host_open(NULL, &dev);
    if (rc == 0)
        rc = haul_comm_mpi_open(NULL, dev, &comm);
    printf("%s\n", haul_last_error());
    return rc != HAUL_E_STATE || haul_device_close(dev) != 0;
}
END
    OMPI_CC=$cc mpicc "$work/ranks.c" -o "$work/ranks" $(pkg-config --cflags --libs haul-mpi)
    LD_LIBRARY_PATH="$libdir" "$work/ranks"
fi

# The installed examples, outside the tree.
examples=$(dirname "$(find "$work/root" -name two_layers.c)")
mkdir "$work/store"
for name in adamw_alone page_array two_layers; do
    $cc "$examples/$name.c" -o "$work/$name" $(pkg-config --cflags --libs haul) -lm
done
export LD_LIBRARY_PATH="$libdir"
"$work/adamw_alone"
"$work/page_array" "$work/store" 256
said=$("$work/two_layers" "$work/store")
echo "$said"
echo "$said" | awk '/^step/ { loss = $4 } NR == 1 { first = loss } END { exit !(loss < first / 2) }' ||
    { echo "FAILED: two_layers does not learn" && exit 1; }
# Ended at 120 steps, and gone on with from the checkpoint.
"$work/two_layers" "$work/store" 120 "$work/saves" >"$work/begun.txt"
again=$("$work/two_layers" "$work/store" 300 "$work/saves" | tail -n 1)
[ "$again" = "$(echo "$said" | tail -n 1)" ] || { echo "FAILED: another digest, $again" && exit 1; }
if [ -n "$(find "$work/root" -name haul-mpi.pc)" ] && command -v mpirun >"$work/mpirun"; then
    OMPI_CC=$cc mpicc -DWITH_MPI "$examples/two_layers.c" -o "$work/two_layers_mpi" \
        $(pkg-config --cflags --libs haul-mpi) -lm
    OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 \
        mpirun --oversubscribe -n 2 "$work/two_layers_mpi" "$work/store"
else
    echo "skipped: two_layers over MPI (no libhaul-mpi, or no mpirun)"
fi
unset LD_LIBRARY_PATH

# The manual pages, found by name.
if man --version >"$work/man.txt" 2>&1; then
    export MANPATH="$(dirname "$(find "$work/root" -name man1 -type d)")"
    man haul | grep -q 'haul-plan(1)'
    man haul-bench-io | grep -q -- '--json'
    man haul_engine_step | grep -q 'struct haul_report'
else
    echo "skipped: manual pages (no man)"
fi

"$(find "$work/root" -path '*bin/haul')" plan --params 7.5e9 --ranks 64 >"$work/plan.txt"
test -s "$work/plan.txt"
echo "installed: $(find "$work/root" -type f | wc -l) files"
