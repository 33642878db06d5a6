#!/bin/sh
# Pushes the images and the chart of a release to a registry, and signs them there with the key
# $TRIPOD_SIGNING_KEY (see sums.sh).
#
#   publish.sh REGISTRY/NAME [FOLDER]
#
# FOLDER is that of `make dist`, by default target/dist. REGISTRY/NAME:VERSION becomes the full
# image, REGISTRY/NAME:VERSION-minimal the minimal one, REGISTRY/NAME/charts/tripod:VERSION the
# chart. Log in to the registry first (skopeo login, helm registry login). Takes skopeo and helm.
set -eu
repository=$1 folder=${2:-target/dist}
dist=$(cd "$(dirname "$0")" && pwd)
key=${TRIPOD_SIGNING_KEY:+$(realpath "$TRIPOD_SIGNING_KEY")}
export TRIPOD_SIGNING_KEY="$key"
cd "$folder"
# What was changed since the release was made is not pushed.
sha256sum --check --strict --quiet SHA256SUMS
if [ -n "$key" ]; then
    "$dist/sums.sh" verify .
else
    echo 'publish.sh: TRIPOD_SIGNING_KEY is not set: images and chart will not be signed' >&2
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

push() { skopeo copy --quiet --all --preserve-digests "$@"; }
sign() { # REPOSITORY DIGEST
    echo "$1@$2"
    [ -n "$key" ] || return 0
    tag=$("$dist/cosign.sh" "$1" "$2" "$work/signature")
    push "oci:$work/signature:$tag" "docker://$1:$tag"
}

# Only what the checksums are about.
files=$(cut -c 67- SHA256SUMS)
for image in $(echo "$files" | grep -- '-image-.*\.tar$'); do
    tag=${image#tripod-} tag=${tag%.tar}
    # tripod-VERSION-image-full.tar, or -minimal.
    tag=$(echo "$tag" | sed 's/-image-full$//; s/-image-/-/')
    push --digestfile="$work/digest" "oci-archive:$image" "docker://$repository:$tag"
    sign "$repository" "$(cat "$work/digest")"
done
# The digest of the chart's manifest is known only when Helm has made it.
for chart in $(echo "$files" | grep '\.tgz$'); do
    helm push "$chart" "oci://$repository/charts" >"$work/pushed" 2>&1 || {
        cat "$work/pushed" >&2
        exit 1
    }
    sign "$repository/charts/tripod" "$(sed -n 's/^Digest: *//p' "$work/pushed")"
done
