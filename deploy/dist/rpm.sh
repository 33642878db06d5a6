#!/bin/sh
# Usage: rpm.sh FOLDER ARCHITECTURE=DEB...
# Makes the RPM package of each architecture (x86_64, aarch64) in FOLDER, with the files of the
# Debian package DEB. With FAST=yes, for tests, packages are larger.
set -eu
folder=$(realpath "$1")
shift
source=$(cd "$(dirname "$0")/../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for pair; do
    arch=${pair%%=*} deb=${pair#*=}
    # RPM, too, writes a version before a release with a tilde.
    version=$(dpkg-deb --field "$deb" Version)
    dpkg-deb --extract "$deb" "$work/$arch"
    rpmbuild -bb --quiet --target "$arch-linux" ${FAST:+--define '_binary_payload w1.gzdio'} \
        --define "_topdir $work/rpm" --define "_rpmdir $folder" \
        --define '_rpmfilename %{NAME}-%{VERSION}-%{RELEASE}.%{ARCH}.rpm' \
        --define "content $work/$arch" --define "source $source" \
        --define "version ${version%-*}" "$source/deploy/rpm/tripod.spec"
done
