#!/bin/bash
# Signs a file of a release, with a key that is not in the repository.
#
#   sign.sh minisign FILE    FILE.minisig with MINISIGN_KEY, a secret key of minisign without a password (minisign -G -W); MINISIGN_PASSWORD
#                            has the password of one that has one
#   sign.sh cosign FILE      FILE.sig as `cosign sign-blob --key` writes it, with COSIGN_KEY: an EC P-256 key in PEM, or a key of
#                            cosign's own, for which cosign has to be there
#
# minisign's are of the kind that OpenBSD's signify and OpenWrt's usign verify too, and the same file gives the same signature.
set -euo pipefail

die() {
    echo "sign.sh: $*" >&2
    exit 1
}

[ $# = 2 ] || die "usage: sign.sh minisign|cosign FILE"
file=$2
case $1 in
minisign)
    [ -r "${MINISIGN_KEY:-}" ] || die "MINISIGN_KEY names no secret key of minisign: ${MINISIGN_KEY:-}"
    command -v minisign >/dev/null || die "minisign is not there: tests/env/setup.sh sign installs it"
    minisign -Slq -s "$MINISIGN_KEY" -m "$file" -x "$file.minisig" -c 'signature of a release of smolet' \
        -t "${file##*/}" <<<"${MINISIGN_PASSWORD:-}" >/dev/null
    ;;
cosign)
    [ -r "${COSIGN_KEY:-}" ] || die "COSIGN_KEY names no secret key: ${COSIGN_KEY:-}"
    if grep -q 'ENCRYPTED \(COSIGN\|SIGSTORE\) PRIVATE KEY' "$COSIGN_KEY"; then
        command -v cosign >/dev/null || die "$COSIGN_KEY is a key of cosign's own kind, and cosign is not there: install it, or give an EC P-256 key in PEM"
        cosign sign-blob --yes --tlog-upload=false --key "$COSIGN_KEY" --output-signature "$file.sig" "$file"
    else
        openssl ec -in "$COSIGN_KEY" -noout -text 2>/dev/null | grep -q 'prime256v1' || die "$COSIGN_KEY is no EC P-256 key in PEM"
        openssl dgst -sha256 -sign "$COSIGN_KEY" "$file" | base64 -w0 >"$file.sig"
    fi
    ;;
*) die "unknown kind $1; one of: minisign cosign" ;;
esac
