#!/usr/bin/env bash
# Make a base image without a registry, from the package mirror that this machine uses itself.
#   make_base.sh TAG FILE…      files list packages, one a line; needs root, mmdebstrap and a running engine
set -euo pipefail

tag=$1
shift
suite=bookworm
sources=$(cat /etc/apt/sources.list.d/debian.sources /etc/apt/sources.list 2>/dev/null || true)
mirror=$(sed -n 's/^URIs: *//p; s/^deb \(\[.*\] \)\?\([^ ]*\) .*/\2/p' <<<"$sources" | sed -n 1p)
[ -n "$mirror" ] || { echo "make_base.sh: no Debian mirror in /etc/apt; is this Debian?" >&2; exit 1; }

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
options=(--variant=minbase --mode=root --format=tar --include="$(sort -u "$@" | paste -sd,)")
options+=(--dpkgopt=force-unsafe-io --aptopt='APT::Install-Recommends "false"' --aptopt='Acquire::Check-Valid-Until "false"')
for unread in doc man locale gtk-doc info; do
    options+=(--dpkgopt="path-exclude=/usr/share/$unread/*")
done
mmdebstrap "${options[@]}" "$suite" "$work/base.tar" "$mirror" 2>"$work/log" || { tail -20 "$work/log" >&2; exit 1; }
docker import "$work/base.tar" "$tag" >/dev/null
