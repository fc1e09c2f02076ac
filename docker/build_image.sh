#!/usr/bin/env bash
# Build the desktop image arpo/desktop:VARIANT.
#   build_image.sh [plain|office|full] [registry|mmdebstrap]
# plain: editor, calculator, file manager, terminal; office: with LibreOffice and Chromium; full: all of OSWorld's
# applications but VS Code.
# registry: on Debian's own image; mmdebstrap: on a base made here (as root). By default: a registry where it answers.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
variant=${1:-plain}
origin=${2:-}
case $variant in
    plain) lists=(packages.txt) ;;
    office) lists=(packages.txt packages-office.txt) ;;
    full) lists=(packages.txt packages-office.txt packages-full.txt) ;;
    *) echo "build_image.sh: the variant is plain, office or full, not '$variant'" >&2; exit 2 ;;
esac
. "$here/progress.sh"
say() { echo "build_image.sh: $* (${SECONDS} s)"; }

if [ -z "$origin" ]; then
    origin=mmdebstrap
    pull() { timeout 20 docker pull --quiet debian:bookworm-slim >/dev/null 2>&1; }
    with_progress "build_image.sh: asking a registry for Debian's image" pull && origin=registry
fi
arguments=(--tag "arpo/desktop:$variant")
if [ "$origin" = mmdebstrap ]; then
    base="arpo/base:$variant-$(cd "$here" && cat make_base.sh "${lists[@]}" | sha256sum | cut -c -12)"
    if ! docker image inspect "$base" >/dev/null 2>&1; then
        say "making $base"
        make_base() { (cd "$here" && bash make_base.sh "$base" "${lists[@]}"); }
        with_progress "build_image.sh: making the base, which takes minutes" make_base
    fi
    arguments+=(--build-arg "BASE=$base")
fi
arguments+=(--build-arg "LISTS=${lists[*]}")

context=$(mktemp -d)
trap 'rm -rf "$context"' EXIT
cp -r "$here"/. "$context"
say "fetching PyAutoGUI"
with_progress "build_image.sh: fetching PyAutoGUI" python3 -m pip wheel --quiet --no-deps --wheel-dir "$context/wheels" \
    pyautogui pymsgbox pytweening pyscreeze pygetwindow pyrect mouseinfo pyperclip
say "building arpo/desktop:$variant"
export DOCKER_BUILDKIT=0 # engines of Debian have no other builder
build() { docker build --quiet "${arguments[@]}" "$context" 2>"$context/log"; }
with_progress "build_image.sh: building arpo/desktop:$variant" build || { cat "$context/log" >&2; exit 1; }
say "done"
