#!/bin/sh
# make_text.sh ROOT OUT DEPFILE: the text that train_gpt learns from when no --data is given: the
# project's own documents and sources, in the order of their names. Folders are dependencies too, so
# that a new file is noticed.
set -eu
export LC_ALL=C
root=$1 out=$2 depfile=$3

rooms=
for room in README.md docs include lib io cpu_adam tools examples tests bench; do
    [ ! -e "$root/$room" ] || rooms="$rooms $root/$room"
done
files=$(find $rooms -type f \( -name '*.md' -o -name '*.[ch]' -o -name '*.py' -o -name '*.sh' \) \
             ! -path '*/results/*' ! -path '*/.*' | sort)
cat $files > "$out"
{
    printf '%s:' "$out"
    printf ' \\\n %s' $files $(find $rooms -type d)
    echo
} > "$depfile"
