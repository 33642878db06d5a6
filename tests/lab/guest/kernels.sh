#!/bin/sh
# Unpacks kernels of Debian's cloud images, for `make kernels`.
#
#   kernels.sh FOLDER
#
# FOLDER/SUITE gets the newest kernel of each suite: `vmlinuz` and `lib/modules`, decompressed.
# FOLDER/arm64 gets that of the stable suite for aarch64, and in `root` the programs that tests start
# there.
set -eu
folder=$1
PATH=$PATH:/usr/sbin:/sbin
rm -rf "${folder:?}"
apt="$folder/apt"
keys=/usr/share/keyrings/debian-archive-keyring.gpg

# Lists of packages of a suite for an architecture, apart from the machine's own.
select_suite() {
    mkdir -p "$apt/lists/partial" "$apt/cache/archives/partial"
    : >"$apt/status"
    echo "deb [signed-by=$keys] http://deb.debian.org/debian $1 main" >"$apt/sources.list"
    cat >"$apt/conf" <<CONF
APT::Architecture "$2";
APT::Architectures { "$2"; };
APT::Sandbox::User "root";
Dir::Etc::SourceList "$apt/sources.list";
Dir::Etc::SourceParts "/dev/null";
Dir::State::Lists "$apt/lists";
Dir::State::Status "$apt/status";
Dir::Cache "$apt/cache";
CONF
    export APT_CONFIG="$apt/conf"
    apt-get -qq update
}

# Unpacks the newest kernel of a suite for an architecture into a folder.
unpack_kernel() {
    select_suite "$1" "$2"
    # The package of this name depends on those of the newest version; newer ones have the modules in
    # a package of their own.
    packages=$(apt-cache -qq depends --recurse "linux-image-cloud-$2" |
        grep -E "^linux-(base|binary|image|modules)-[0-9].*-cloud-$2\$")
    # shellcheck disable=SC2086 # a list of words
    (cd "$apt" && apt-get -qq download $packages && for file in *.deb; do dpkg -x "$file" kernel; done)
    rm "$apt"/*.deb
    mkdir -p "$3/lib/modules"
    find "$apt/kernel" -name 'vmlinuz*' -type f -exec mv {} "$3/vmlinuz" ';'
    for modules in "$apt"/kernel/lib/modules "$apt"/kernel/usr/lib/modules; do
        [ ! -d "$modules" ] || cp -a "$modules/." "$3/lib/modules"
    done
    find "$3" -name '*.ko.xz' -exec xz -d {} +
    depmod -b "$3" "$(ls "$3/lib/modules")"
    rm -r "$apt/kernel"
}

for suite in bookworm trixie trixie-backports; do
    unpack_kernel "$suite" amd64 "$folder/$suite"
done
unpack_kernel trixie arm64 "$folder/arm64"
# Unpacked packages are enough: nothing of them is configured.
apt-get -qq -y --no-install-recommends --download-only install base-files bash busybox-static coreutils \
    dash ipset iproute2 iptables kmod mount nftables procps util-linux >/dev/null
mkdir "$folder/arm64/root"
for file in "$apt"/cache/archives/*.deb; do dpkg -x "$file" "$folder/arm64/root"; done
rm -r "$apt"
