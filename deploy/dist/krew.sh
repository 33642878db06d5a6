#!/bin/sh
# Makes archives of the kubectl plugin from static programs, and the manifest with which krew
# installs it (https://krew.sigs.k8s.io/docs/developer-guide/plugin-manifest/).
#
#   krew.sh FOLDER VERSION amd64=PROGRAM arm64=PROGRAM
#
# TRIPOD_DOWNLOADS is the address under which the files of FOLDER will be found.
set -eu
folder=$(realpath "$1") version=$2
shift 2
cd "$(dirname "$0")/../.."
downloads=${TRIPOD_DOWNLOADS:-https://downloads.example.com/tripod/v$version}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
manifest=$folder/tripod.krew.yaml
cat >"$manifest" <<END
apiVersion: krew.googlecontainertools.github.com/v1alpha2
kind: Plugin
metadata:
  name: tripod
spec:
  version: v$version
  homepage: $downloads
  shortDescription: Ask Tripod, the service proxy, on any node
  description: |
    Prints how the Tripod of a node is, which Services and endpoints it serves, and where it
    sends a packet; with --all-nodes, a line for each node. kubectl runs the command in the pod.
  platforms:
END
for pair in "$@"; do
    archive=kubectl-tripod-$version-linux-${pair%%=*}.tar.gz
    install -m 755 "${pair#*=}" "$work/kubectl-tripod"
    install -m 644 LICENSE "$work/LICENSE"
    # The same bytes on each machine.
    tar --create --sort=name --mtime="@${SOURCE_DATE_EPOCH:-0}" --owner=0 --group=0 --numeric-owner \
        --directory "$work" kubectl-tripod LICENSE | gzip --no-name >"$folder/$archive"
    sum=$(sha256sum "$folder/$archive" | cut -d ' ' -f 1)
    cat >>"$manifest" <<END
  - selector:
      matchLabels:
        os: linux
        arch: ${pair%%=*}
    uri: $downloads/$archive
    sha256: $sum
    bin: kubectl-tripod
END
done
