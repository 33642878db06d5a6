#!/bin/sh
# Signs what a registry holds, in cosign's format, so that users verify it with cosign:
# https://github.com/sigstore/cosign/blob/main/specs/SIGNATURE_SPEC.md
#
#   cosign.sh REPOSITORY DIGEST LAYOUT
#
# Signs the manifest DIGEST (sha256:…) of REPOSITORY with the ECDSA P-256 key in the file
# $TRIPOD_SIGNING_KEY, and writes the signature as an image layout to the folder LAYOUT. Prints
# the tag under which cosign looks for it in REPOSITORY.
set -eu
repository=$1 digest=$2 layout=$3
case $digest in
sha256:?*) ;;
*) echo "cosign.sh: '$digest' of $repository is no digest: name it as sha256:…" >&2 && exit 2 ;;
esac
type=application/vnd.oci.image
rm -rf "$layout"
mkdir -p "$layout/blobs/sha256"

# Stores its input, and prints the part of a descriptor that follows from it.
blob() {
    cat >"$layout/new"
    sum=$(sha256sum <"$layout/new" | cut -d ' ' -f 1)
    printf '"digest":"sha256:%s","size":%s' "$sum" "$(wc -c <"$layout/new")"
    mv "$layout/new" "$layout/blobs/sha256/$sum"
}

# "Simple Signing" of the specification.
payload='{"critical":{"identity":{"docker-reference":"%s"},"image":{"docker-manifest-digest":"%s"},"type":"cosign container image signature"},"optional":null}'
# shellcheck disable=SC2059 # the format is the one above
signed=$(printf "$payload" "$repository" "$digest" | blob)
sum=${signed#*sha256:} sum=${sum%%\"*}
openssl dgst -sha256 -sign "$TRIPOD_SIGNING_KEY" -out "$layout/new" "$layout/blobs/sha256/$sum"
signature=$(base64 -w 0 "$layout/new")
# An image needs a configuration, whose layers are those of the manifest.
config=$(printf '{"architecture":"","os":"","config":{},"rootfs":{"type":"layers","diff_ids":["sha256:%s"]}}' "$sum" | blob)
layer=$(printf '{"mediaType":"application/vnd.dev.cosign.simplesigning.v1+json",%s,"annotations":{"dev.cosignproject.cosign/signature":"%s"}}' "$signed" "$signature")
manifest=$(printf '{"schemaVersion":2,"mediaType":"%s.manifest.v1+json","config":{"mediaType":"%s.config.v1+json",%s},"layers":[%s]}' "$type" "$type" "$config" "$layer" | blob)

# "Tag-based Discovery" of the specification.
tag=$(echo "$digest" | tr : -).sig
printf '{"imageLayoutVersion":"1.0.0"}' >"$layout/oci-layout"
printf '{"schemaVersion":2,"manifests":[{"mediaType":"%s.manifest.v1+json",%s,"annotations":{"org.opencontainers.image.ref.name":"%s"}}]}' "$type" "$manifest" "$tag" >"$layout/index.json"
echo "$tag"
