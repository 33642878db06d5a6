#!/bin/sh
# Builds the newest commit twice, in two folders with names of different lengths and with
# nothing that is shared but the sources of the dependencies, and compares the static
# programs. They are the same, or it fails.
#
#   deploy/dist/reproducible.sh FOLDER
set -eu
folder=$1
sums=
for name in a another; do
    rm -rf "${folder:?}/$name"
    mkdir -p "$folder/$name"
    git archive HEAD | tar -x -C "$folder/$name"
    # No variable of this build leads into the other one.
    (cd "$folder/$name" && env -u CARGO_TARGET_DIR -u MAKEFLAGS -u MAKELEVEL make static)
    sum=$(sha256sum <"$folder/$name/target/static/tripod")
    echo "$sum $folder/$name"
    sums="$sums $sum"
done
# shellcheck disable=SC2086
set -- $sums
if [ "$1" != "$3" ]; then
    echo "the two builds differ: compare them with diffoscope or cmp -l" >&2
    exit 1
fi
echo "both builds are the same: $1"
