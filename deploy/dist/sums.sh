#!/bin/sh
# Checksums of a release, and their signature with the key in the file $TRIPOD_SIGNING_KEY: ECDSA
# with P-256 in PEM, as made by `openssl ecparam -name prime256v1 -genkey -noout`.
#
#   sums.sh write FOLDER    writes SHA256SUMS of all files in FOLDER; with a key, SHA256SUMS.sig
#   sums.sh verify FOLDER   verifies SHA256SUMS.sig with the public half of the key
set -eu
key=${TRIPOD_SIGNING_KEY:+$(realpath "$TRIPOD_SIGNING_KEY")}
cd "$2"
case $1 in
write)
    rm -f SHA256SUMS SHA256SUMS.sig
    # Not written in place, where it would be one of the files.
    sums=$(sha256sum -- *)
    echo "$sums" >SHA256SUMS
    if [ -n "$key" ]; then
        openssl dgst -sha256 -sign "$key" -out SHA256SUMS.sig SHA256SUMS
    else
        echo 'sums.sh: TRIPOD_SIGNING_KEY is not set: SHA256SUMS is not signed' >&2
    fi
    ;;
verify)
    public=$(openssl pkey -in "$key" -pubout)
    [ -f SHA256SUMS.sig ] && echo "$public" | openssl dgst -sha256 -verify /dev/stdin \
        -signature SHA256SUMS.sig SHA256SUMS >/dev/null || {
        echo "sums.sh: $PWD/SHA256SUMS.sig is not a signature by $key: make the" \
            'release again with this key' >&2
        exit 1
    }
    ;;
esac
