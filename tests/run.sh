#!/bin/sh
# Runs the tests of a profile of .config/nextest.toml: `run.sh default` (make test) those that
# every change needs, `run.sh all` (make test-all) all. The times of all tests are in
# target/test-times.csv afterwards.
#
# With a change of deploy/, `run.sh default` runs all tests of deploy/. A change is what differs
# from BASE: by default, the commit that HEAD and its upstream have in common, or else the one
# before HEAD.
set -u
cd "$(dirname "$0")/.."
profile=$1
cargo=${CARGO:-cargo}
target=$(realpath "${CARGO_TARGET_DIR:-target}")
host=$(rustc -vV | sed -n 's/^host: //p')
export PATH="$PWD/target/tools/bin:$PATH"
failed=

base() {
    upstream=$(git merge-base HEAD '@{upstream}' 2>/dev/null)
    case $upstream in
    '' | "$(git rev-parse HEAD)") git rev-parse --quiet --verify HEAD~1 ;;
    *) echo "$upstream" ;;
    esac
}
# What cannot be told counts as changed.
deploy_changed() {
    base=${BASE:-$(base)} && [ -n "$base" ] || return 0
    ! git diff --quiet "$base" -- deploy
}

tests() { "$cargo" nextest run --workspace --lib --bins --test suite --profile "$profile" "$@"; }

if [ "$profile" = all ] || deploy_changed; then
    tests/tools.sh release "${INSTALL:-no}"
    make --silent static-for-tests || failed="$failed static"
    make --silent aarch64-for-tests || failed="$failed aarch64"
    export TRIPOD_STATIC="$target/static/$host/debug/tripod"
    export TRIPOD_AARCH64="$target/aarch64/aarch64-unknown-linux-gnu/debug/tripod"
    all_of_deploy="test(/^deploy::/)"
fi
if [ "$profile" = all ]; then
    export TRIPOD_ALL_CASES=1 TRIPOD_SOAK="${TRIPOD_SOAK:-600}"
    tests || failed="$failed tests"
else
    tests --ignore-default-filter -E "default() ${all_of_deploy:+| $all_of_deploy}" || failed="$failed tests"
fi
tests/times.sh "target/nextest/$profile/junit.xml" "$target/test-times.csv"
if [ "$profile" = all ]; then
    tests --run-ignored only -E 'test(=mutants::run)' || failed="$failed mutants"
fi
"$cargo" test --workspace --doc || failed="$failed documentation"
[ -z "$failed" ] || { echo "failed:$failed"; exit 1; }
