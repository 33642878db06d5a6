#!/bin/sh
# Makes everything that a release consists of from the static programs of both architectures.
#
#   release.sh FOLDER X86_64 AARCH64
#
# What was in FOLDER is removed. IMAGES names the images (full, minimal, by default both).
# With TRIPOD_SIGNING_KEY, the checksums are signed (see sums.sh). publish.sh then pushes images
# and chart.
set -eu
folder=$(realpath -m "$1") x86_64=$(realpath "$2") aarch64=$(realpath "$3")
key=${TRIPOD_SIGNING_KEY:+$(realpath "$TRIPOD_SIGNING_KEY")}
export TRIPOD_SIGNING_KEY="$key"
cd "$(dirname "$0")/../.."
version=$(sed -n 's/^version = "\(.*\)"/\1/p;T;q' Cargo.toml)
# The date of what is built is that of the commit, so that each machine writes the same one.
: "${SOURCE_DATE_EPOCH:=$(git log -1 --format=%ct 2>/dev/null || date +%s)}"
export SOURCE_DATE_EPOCH
rm -rf "${folder:?}"
mkdir -p "$folder"

install -m 755 "$x86_64" "$folder/tripod-x86_64"
install -m 755 "$aarch64" "$folder/tripod-aarch64"
# First, because an image may lack what only another machine has.
for image in ${IMAGES:-minimal full}; do
    file=$folder/tripod-$version-image-$image.tar
    deploy/dist/image.sh "$image" "$file" amd64="$x86_64" arm64="$aarch64"
done
deploy/dist/package.sh "$folder/tripod-$(uname -m)"
cp target/package/tripod.cdx.json "$folder/"
deploy/dist/deb.sh "$folder" x86_64="$x86_64" aarch64="$aarch64"
deploy/dist/krew.sh "$folder" "$version" amd64="$x86_64" arm64="$aarch64"
deploy/dist/rpm.sh "$folder" x86_64="$(echo "$folder"/*_amd64.deb)" aarch64="$(echo "$folder"/*_arm64.deb)"
helm package deploy/helm/tripod --destination "$folder" >/dev/null
deploy/dist/sums.sh write "$folder"
