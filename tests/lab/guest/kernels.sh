#!/bin/sh
# Unpacks kernels of Debian's cloud images, for `make kernels`.
#
#   kernels.sh FOLDER
#
# FOLDER/SUITE gets the newest kernel of each suite: `vmlinuz` and `lib/modules`, decompressed.
set -eu
folder=$1
PATH=$PATH:/usr/sbin:/sbin
rm -rf "${folder:?}"
mkdir -p "$folder/apt/lists/partial" "$folder/apt/cache/archives/partial"
apt="$folder/apt"
keys=/usr/share/keyrings/debian-archive-keyring.gpg
for suite in bookworm trixie trixie-backports; do
    echo "deb [signed-by=$keys] http://deb.debian.org/debian $suite main" >"$apt/sources.list"
    options="-qq -o Dir::Etc::SourceList=$apt/sources.list -o Dir::Etc::SourceParts=/dev/null
        -o Dir::State::Lists=$apt/lists -o Dir::Cache=$apt/cache -o APT::Sandbox::User=root"
    # shellcheck disable=SC2086 # a list of words
    apt-get $options update
    # The package of this name depends on those of the newest version; newer ones have the modules in
    # a package of their own.
    # shellcheck disable=SC2086
    packages=$(apt-cache $options depends --recurse linux-image-cloud-amd64 |
        grep -E '^linux-(base|binary|image|modules)-[0-9].*-cloud-amd64$')
    # shellcheck disable=SC2086
    (cd "$apt" && apt-get $options download $packages && for file in *.deb; do dpkg -x "$file" kernel; done)
    rm "$apt"/*.deb
    mkdir -p "$folder/$suite/lib/modules"
    find "$apt/kernel" -name 'vmlinuz*' -type f -exec mv {} "$folder/$suite/vmlinuz" ';'
    for modules in "$apt"/kernel/lib/modules "$apt"/kernel/usr/lib/modules; do
        [ ! -d "$modules" ] || cp -a "$modules/." "$folder/$suite/lib/modules"
    done
    find "$folder/$suite" -name '*.ko.xz' -exec xz -d {} +
    depmod -b "$folder/$suite" "$(ls "$folder/$suite/lib/modules")"
    rm -r "$apt/kernel"
done
rm -r "$apt"
