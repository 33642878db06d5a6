#!/bin/sh
# Usage: deb.sh FOLDER ARCHITECTURE=PROGRAM...
# Makes the Debian package of each PROGRAM, which is static, in FOLDER. The architecture is the
# one of Rust (x86_64, aarch64). package.sh must have run. With FAST=yes, for tests, packages are
# larger.
set -eu
folder=$(realpath "$1")
shift
cd "$(dirname "$0")/../.."
for pair; do
    arch=${pair%%=*} program=${pair#*=}
    # Cargo.toml takes it from there.
    install -m 755 "$program" target/package/tripod
    cargo deb --quiet --offline --no-build --no-strip ${FAST:+--fast} \
        --target "$arch-unknown-linux-gnu" --output "$folder/"
done
