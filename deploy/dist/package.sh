#!/bin/sh
# Usage: package.sh PROGRAM
# Writes into target/package what comes from PROGRAM, which runs here: manual pages and
# completion scripts; and the list of all crates with their licences (CycloneDX).
set -eu
program=$(realpath "$1")
cd "$(dirname "$0")/../.."
folder=target/package
rm -rf "$folder"
mkdir -p "$folder/man" "$folder/completion"
"$program" man >"$folder/man/tripod.8"
commands=$(sed -n 's/^tripod\\-\([a-z]*\)(8)$/\1/p' "$folder/man/tripod.8" | grep -vx help)
for command in $commands; do
    "$program" man "$command" >"$folder/man/tripod-$command.8"
done
"$program" completion bash >"$folder/completion/tripod.bash"
"$program" completion fish >"$folder/completion/tripod.fish"
"$program" completion zsh >"$folder/completion/_tripod"
# The tool writes next to each Cargo.toml of the workspace; that of the program names all crates.
host=$(rustc -vV | sed -n 's/^host: //p')
trap 'rm -f tripod.cdx.json crates/*/tripod.cdx.json' EXIT
cargo cyclonedx --quiet --format json --target "$host" --override-filename tripod.cdx
mv tripod.cdx.json "$folder/"
