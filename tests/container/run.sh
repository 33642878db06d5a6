#!/bin/sh
# Runs make in a container that has what tests need, with docker, or with buildah as root:
#
#   run.sh ARGUMENT... (of make)
#
# BASE names another base image (see Dockerfile), OPTIONS has further options for `docker run` or
# `buildah run`, such as --env or --volume. What is built is kept in target/container.
set -eu
source=$(cd "$(dirname "$0")/../.." && pwd)
image=tripod-tests
kept=$source/target/container
mkdir -p "$kept/cargo"
cd "$source"
# Tests make namespaces, mount file systems and write kernel settings there.
if docker info >/dev/null 2>&1; then
    docker build ${BASE:+--build-arg "BASE=$BASE"} --tag "$image" --file tests/container/Dockerfile .
    # shellcheck disable=SC2086 # a list of options
    exec docker run --rm --privileged --volume "$source:$source" --workdir "$source" \
        --env "CARGO_TARGET_DIR=$kept" --env "CARGO_HOME=$kept/cargo" ${OPTIONS:-} "$image" make "$@"
elif command -v buildah >/dev/null; then
    # What docker calls privileged: the capabilities that this process has, no filter of system
    # calls, and a writable /proc/sys, which buildah mounts read-only in the container.
    capabilities=$(setpriv --dump | sed -n 's/^Capability bounding set: /cap_/p' | sed 's/,/,cap_/g')
    buildah bud ${BASE:+--build-arg "BASE=$BASE"} --isolation=chroot --layers --tag "$image" \
        --ignorefile tests/container/Dockerfile.dockerignore --file tests/container/Dockerfile .
    container=$(buildah from --ulimit "nofile=$(ulimit -Hn)" --security-opt seccomp=unconfined "$image")
    trap 'buildah rm "$container" >/dev/null' EXIT
    trap 'exit 143' TERM INT
    # shellcheck disable=SC2086
    buildah run --isolation=chroot --cap-add="$capabilities" --volume "$source:$source" \
        --workingdir "$source" --env "CARGO_TARGET_DIR=$kept" --env "CARGO_HOME=$kept/cargo" \
        ${OPTIONS:-} "$container" sh -c 'mount -o remount,bind,rw /proc/sys && exec make "$@"' make "$@"
else
    echo 'neither docker nor buildah is here: install docker.io or, as root, buildah to run tests in a container' >&2
    exit 1
fi
