#!/bin/sh
# What a slower link costs: the step time of one model on the emulated device with everything offloaded, over link
# speeds, beside the same model with everything on the device, in one run. Compute is timed waits, links have a set speed,
# optimizer and memory are real; a few minutes on two cores.
#
# usage: bench_link_penalty.sh [haul [folder [GB/s...]]]
#
# Leaves penalty.csv and, where gnuplot is, penalty.svg in the folder. Ends with a table.
set -eu
haul=${1:-haul}
folder=${2:-.}
[ $# -gt 2 ] && shift 2 || set -- 0.5 1 2 4 8 16
scratch=$(mktemp -d "$folder/penalty.XXXXXX")
trap 'rm -rf "$scratch"' EXIT
sizes=${PENALTY_FLAGS:---params 16Mi --units 16 --steps 5 --forward-ms 60}

for link; do
    # All placements in one run, whose rows take turns: a penalty is a ratio within it.
    # shellcheck disable=SC2086
    "$haul" bench step $sizes --nvme "$scratch" --link-gbps "$link" --json >"$scratch/$link.json"
done
python3 - "$scratch" "$folder/penalty.csv" "$@" <<'END'
import json, sys
scratch, out, links = sys.argv[1], sys.argv[2], sys.argv[3:]
rows = []
for link in links:
    step = {(row["placement"], row["overlap"]): row for row in json.load(open(f"{scratch}/{link}.json"))["rows"]}
    for placement in ("host", "nvme"):
        for overlap in ("off", "deferred"):
            row, resident = step[placement, overlap], step["device", overlap]
            rows.append((float(link), placement, overlap, row["step_s"], row["bound_s"],
                         row["step_s"] / resident["step_s"] - 1))
with open(out, "w") as f:
    f.write("link_gbps,placement,overlap,step_s,bound_s,penalty\n")
    f.writelines("%g,%s,%s,%.6f,%.6f,%.4f\n" % row for row in rows)
print("emulated device; penalty: step / the same with everything on the device - 1")
print(f"{'link GB/s':>9} {'records':>9} {'updates':>9} {'step ms':>9} {'bound ms':>9} {'penalty':>8}")
for link, placement, overlap, step_s, bound_s, penalty in rows:
    print(f"{link:9g} {placement:>9} {overlap:>9} {step_s * 1e3:9.2f} {bound_s * 1e3:9.2f} {penalty:8.1%}")
END
if command -v gnuplot >"$scratch/gnuplot"; then
    gnuplot <<END
set terminal svg size 760,460 dynamic background rgb 'white'
set output '$folder/penalty.svg'
set datafile separator ','
set logscale x 2
set xlabel 'GB/s of the emulated link, each way'
set ylabel 'penalty of offloading, %'
set grid
plot "< grep 'host,off,' '$folder/penalty.csv'" using 1:(100 * \$6) with linespoints pt 7 lw 2 lc rgb '#8a8880' title 'host, updates at the end of the step', \
     "< grep 'host,deferred,' '$folder/penalty.csv'" using 1:(100 * \$6) with linespoints pt 7 lw 2 lc rgb '#2a78d6' title 'host, deferred', \
     "< grep 'nvme,deferred,' '$folder/penalty.csv'" using 1:(100 * \$6) with linespoints pt 5 lw 2 lc rgb '#c98500' title 'nvme, deferred'
END
    echo "drawn: $folder/penalty.svg"
else
    echo "not drawn: gnuplot is not installed"
fi
