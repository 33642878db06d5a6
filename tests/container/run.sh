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
if command -v docker >/dev/null; then
    docker build ${BASE:+--build-arg "BASE=$BASE"} --tag "$image" --file tests/container/Dockerfile .
    # shellcheck disable=SC2086 # a list of options
    exec docker run --rm --privileged --volume "$source:$source" --workdir "$source" \
        --env "CARGO_TARGET_DIR=$kept" --env "CARGO_HOME=$kept/cargo" ${OPTIONS:-} "$image" make "$@"
elif command -v buildah >/dev/null; then
    # Of the isolations of buildah, only chroot leaves /proc/sys writable.
    export BUILDAH_ISOLATION=chroot
    ignored=tests/container/Dockerfile.dockerignore
    buildah bud ${BASE:+--build-arg "BASE=$BASE"} --layers --tag "$image" --ignorefile "$ignored" \
        --file tests/container/Dockerfile .
    container=$(buildah from "$image")
    trap 'buildah rm "$container" >/dev/null' EXIT
    trap 'exit 143' TERM INT
    # shellcheck disable=SC2086
    buildah run --cap-add=all --volume "$source:$source" --workingdir "$source" \
        --env "CARGO_TARGET_DIR=$kept" --env "CARGO_HOME=$kept/cargo" ${OPTIONS:-} "$container" make "$@"
else
    echo 'missing: docker or buildah, to run tests in a container (packages docker.io, buildah of Debian)' >&2
    exit 1
fi
