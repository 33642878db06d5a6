#!/bin/sh
# Builds an image for several architectures from static programs, and packs its layout (OCI image
# specification 1.1: one index with a manifest for each architecture) into an archive.
#
#   image.sh full|minimal FILE ARCHITECTURE=PROGRAM...
#
# The architecture is the one of Go, as images name it (amd64, arm64). `minimal` is the last stage
# of deploy/Dockerfile.minimal and takes buildah alone. `full` is the last stage of
# deploy/Dockerfile, which runs Debian's programs: it takes the base image of each architecture,
# and emulation of those that this machine does not have. The base images come from the registry
# that the Dockerfile names, or, with TRIPOD_BASE_IMAGES=FOLDER, from FOLDER/ARCHITECTURE.tar
# (tests/deploy/image/base.sh makes these), in which case packages come from the sources of apt
# on this machine.
set -eu
kind=$1 file=$(realpath -m "$2")
shift 2
deploy=$(cd "$(dirname "$0")/.." && pwd)
case $kind in
full) dockerfile=$deploy/Dockerfile ;;
minimal) dockerfile=$deploy/Dockerfile.minimal ;;
*) echo "image.sh: unknown image $kind: name full or minimal" >&2 && exit 2 ;;
esac
bases=${TRIPOD_BASE_IMAGES:-}
: "${SOURCE_DATE_EPOCH:=$(date +%s)}"

# The stage before the last one compiles; here the programs are there already.
stage() { sed -n '/^FROM/h; /^FROM/!H; ${x;p}' "$dockerfile"; }

# Everything that is missing is named before anything is built.
missing=
lacks() { echo "image.sh: the $kind image for $1 cannot be built: $2" >&2 && missing=yes; }
for pair; do
    arch=${pair%%=*} program=$(realpath -m "${pair#*=}")
    [ -f "$program" ] || lacks "$arch" "there is no program $program"
    [ "$kind" = full ] || continue
    [ -z "$bases" ] || [ -f "$bases/$arch.tar" ] ||
        lacks "$arch" "there is no base image $bases/$arch.tar; tests/deploy/image/base.sh makes it"
    "$program" --version >/dev/null 2>&1 ||
        lacks "$arch" "this machine does not run its programs; install qemu-user-static and binfmt-support"
done
[ -z "$missing" ] || exit 1

work=$(mktemp -d)
# What buildah made may be mounted, and belong to others.
trap 'build rm --all >/dev/null 2>&1 || true; rm -rf "$work"' EXIT
trap 'exit 143' TERM INT
build() { buildah --storage-driver=vfs --root "$work/store" --runroot "$work/run" "$@"; }

stage >"$work/Dockerfile"
from=$(sed -n 's/^FROM //p' "$work/Dockerfile")

# Makes the base image of an architecture, and sets `options` to what a build with it needs.
base() {
    options=
    [ "$kind" = full ] || return 0
    if [ -n "$bases" ]; then
        container=$(build from --platform "linux/$1" scratch)
        build add --quiet "$container" "$bases/$1.tar" / >/dev/null
        build commit --quiet --rm "$container" "localhost/base-$1" >/dev/null
        mkdir -p "$work/apt-$1"
        options="--from=localhost/base-$1 --volume=/etc/apt:/etc/apt:ro --volume=$work/apt-$1:/var/cache/apt"
    else
        build pull --quiet --platform "linux/$1" "$from" >/dev/null || {
            echo "image.sh: cannot get the base image $from for $1: name a registry that has it in" \
                "/etc/containers/registries.conf, or a folder in TRIPOD_BASE_IMAGES" >&2
            exit 1
        }
    fi
}

for pair; do
    arch=${pair%%=*} program=$(realpath -m "${pair#*=}")
    first=$work/first-$arch
    mkdir -p "$first/image/usr/local/bin" "$first/src/target/static"
    install -m 755 "$program" "$first/image/usr/local/bin/tripod"
    install -m 755 "$program" "$first/src/target/static/tripod"
    ln -s tripod "$first/image/usr/local/bin/kube-proxy"
    base "$arch"
    # shellcheck disable=SC2086 # a list of words
    build bud --quiet --isolation=chroot --format=oci --platform="linux/$arch" $options \
        --timestamp="$SOURCE_DATE_EPOCH" --build-context="build=$first" --manifest=tripod \
        --file="$work/Dockerfile" "$first" >/dev/null
done
rm -f "$file"
mkdir -p "$(dirname "$file")"
build manifest push --quiet --all tripod "oci-archive:$file:tripod" >/dev/null
