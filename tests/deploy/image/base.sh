#!/bin/sh
# Makes the image that the last stage of deploy/Dockerfile is based on from Debian's packages,
# as an archive of its files: tests reach no registry of images. Takes root, debootstrap, and
# apt on a machine of the same release, whose mirror it uses.
#   base.sh FILE [ARCHITECTURE]
# Another architecture (arm64) takes emulation: qemu-user-static and binfmt-support.
set -eu
# What is mounted is gone with the namespace.
[ "${3-}" = mounted ] || exec unshare --mount "$0" "$1" "${2-}" mounted
file=$1 architecture=$2
suite=$(sed -n 's/^FROM debian:\([a-z]*\)-slim$/\1/p' "$(dirname "$0")/../../../deploy/Dockerfile")
[ -n "$suite" ] || { echo 'deploy/Dockerfile: no stage is FROM debian:SUITE-slim' >&2; exit 1; }
# Updates of a release have its codename with an ending.
mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' "Codename: $suite" |
    head -n 1)
[ -n "$mirror" ] || { echo "apt has no source of $suite" >&2; exit 1; }

root=$file.root
log=$file.log
mkdir -p "$root"
# In memory, since dpkg waits for the disk after each file.
mount -t tmpfs base "$root"
debootstrap --variant=minbase ${architecture:+--arch="$architecture"} "$suite" "$root" "$mirror" >"$log" 2>&1 || {
    tail -n 3 "$log" >&2
    exit 1
}
# As in the image of the registry, there and in what is installed later.
for folder in doc info locale man; do
    rm -rf "${root:?}/usr/share/$folder"
    echo "path-exclude /usr/share/$folder/*"
done >"$root/etc/dpkg/dpkg.cfg.d/docker"
rm -rf "$root"/var/cache/apt/archives/*.deb "$root"/var/lib/apt/lists/*
tar --numeric-owner --one-file-system -C "$root" -cf "$file.new" .
umount --recursive "$root"
rm -r "$root" "$log"
mv "$file.new" "$file"
