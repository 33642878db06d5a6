#!/bin/sh
# Builds the targets with the instructions that libFuzzer follows, which the stable
# compiler adds (as cargo-fuzz does, https://github.com/rust-fuzz/cargo-fuzz), and runs
# each for SECONDS_EACH. What is found stays in target/fuzz; a crash ends the run.
#
#   fuzz/run.sh [TARGET...]
set -eu
cd "$(dirname "$0")"
seconds=${SECONDS_EACH:-60}
host=$(rustc -vV | sed -n 's/^host: //p')
case ${CARGO_TARGET_DIR:=target} in
/*) ;;
*) CARGO_TARGET_DIR=$(cd .. && pwd)/$CARGO_TARGET_DIR ;;
esac
target=$CARGO_TARGET_DIR/fuzz
# With --target, build scripts are built without these.
RUSTFLAGS="--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
-Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
-Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares \
-Cdebug-assertions -Coverflow-checks -Copt-level=1"
export RUSTFLAGS
CARGO_TARGET_DIR=$target cargo build --quiet --locked --target "$host"

# Where each begins, in addition to its own corpus.
seeds() {
    case $1 in
    manifests) echo ../tests/vectors/[0-9]* ../examples/hello ;;
    saved_tables) echo ../tests/vectors/*/iptables ../tests/vectors/*/ipvs ;;
    configuration) echo ../tests/config ;;
    esac
}

[ $# -gt 0 ] || set -- $(sed -n 's/^name = "\(.*\)"/\1/p' Cargo.toml | grep -v tripod-fuzz)
for name; do
    corpus=$target/corpus/$name
    mkdir -p "$corpus" "corpus/$name" "$target/found"
    echo "== $name, $seconds s"
    # shellcheck disable=SC2046
    "$target/$host/debug/$name" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 \
        -max_len=16384 -verbosity=0 -print_final_stats=1 -artifact_prefix="$target/found/$name-" \
        "$corpus" "corpus/$name" $(seeds "$name")
done
