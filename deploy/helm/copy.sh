#!/bin/sh
# Updates the copies of manifests in tripod/files, from which the chart is made: a chart that
# contains symbolic links cannot be installed from an archive of the repository on every system,
# and Helm warns of them. To add a manifest to the chart, create an empty file there first.
set -eu
cd "$(dirname "$0")/tripod/files"
find . -type f | while read -r file; do
    cp "../../../$file" "$file"
done
