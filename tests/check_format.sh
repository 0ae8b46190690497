#!/bin/sh
# clang-format 14 with the tree's .clang-format changes nothing. Public headers are set by hand, so that
# they read as a manual. Exit 77 (a skip) when clang-format-14 is missing.
#   check_format.sh SOURCE_ROOT
set -eu
cd "$1"
format=$(command -v clang-format-14) || {
    echo "SKIP: clang-format-14 is missing (packages.txt)"
    exit 77
}
find lib io cpu_adam tools examples tests bench \( -name '*.c' -o -name '*.h' \) -print0 |
    xargs -0 "$format" --dry-run -Werror
echo "formatted: $(find lib io cpu_adam tools examples tests bench -name '*.[ch]' | wc -l) files"
