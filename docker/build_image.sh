#!/usr/bin/env bash
# Build the desktop image arpo/desktop:VARIANT.
#   build_image.sh [plain|office|full|vscode] [registry|mmdebstrap]
# plain: editor, calculator, file manager, terminal; office: with LibreOffice and Chromium; full: all of OSWorld's
# applications but VS Code; vscode: with that too, on top of the full image, from docker/code.deb, which you bring.
# registry: on Debian's own image; mmdebstrap: on a base made here (as root). By default: a registry where it answers.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
variant=${1:-plain}
origin=${2:-}
case $variant in
    plain) lists=(packages.txt) ;;
    office) lists=(packages.txt packages-office.txt) ;;
    full) lists=(packages.txt packages-office.txt packages-full.txt) ;;
    vscode) [ -f "$here/code.deb" ] || {
        echo "build_image.sh: VS Code may not be handed on: put Microsoft's package (.deb, x64) at $here/code.deb" >&2
        exit 2
    } ;;
    *) echo "build_image.sh: the variant is plain, office, full or vscode, not '$variant'" >&2; exit 2 ;;
esac
. "$here/progress.sh"
say() { echo "build_image.sh: $* (${SECONDS} s)"; }
context=$(mktemp -d)
trap 'rm -rf "$context"' EXIT
export DOCKER_BUILDKIT=0 # engines of Debian have no other builder
finish() { # options of the build
    say "building arpo/desktop:$variant"
    with_progress "build_image.sh: building arpo/desktop:$variant" \
        quietly docker build --quiet --force-rm --tag "arpo/desktop:$variant" "$@" "$context" || exit 1
    say "done"
    exit 0
}

docker version >/dev/null || exit # its own words say that no engine answers

if [ "$variant" = vscode ]; then
    docker image inspect arpo/desktop:full >/dev/null 2>&1 || bash "$here/build_image.sh" full "$origin"
    cp "$here"/vscode/* "$context"
    docker run --rm --interactive --network none arpo/desktop:full dpkg-deb --fsys-tarfile - \
        <"$here/code.deb" >"$context/code.tar" ||
        { echo "build_image.sh: $here/code.deb is no whole Debian package" >&2; exit 2; }
    tar --list --file "$context/code.tar" ./usr/share/code/bin/code >/dev/null 2>&1 ||
        { echo "build_image.sh: $here/code.deb has no /usr/share/code/bin/code, it is not VS Code" >&2; exit 2; }
    finish --label "arpo.vscode=$(sha256sum <"$here/code.deb" | cut -c -12)"
fi

if [ -z "$origin" ]; then
    origin=mmdebstrap
    pull() { timeout 20 docker pull --quiet debian:bookworm-slim >/dev/null 2>&1; }
    with_progress "build_image.sh: asking a registry for Debian's image" pull && origin=registry
fi
arguments=(--build-arg "LISTS=${lists[*]}")
if [ "$origin" = mmdebstrap ]; then
    base="arpo/base:$variant-$(cd "$here" && cat make_base.sh "${lists[@]}" | sha256sum | cut -c -12)"
    if ! docker image inspect "$base" >/dev/null 2>&1; then
        say "making $base"
        make_base() { (cd "$here" && bash make_base.sh "$base" "${lists[@]}"); }
        with_progress "build_image.sh: making the base, which takes minutes" quietly make_base
    fi
    arguments+=(--build-arg "BASE=$base")
fi
cp -r "$here"/. "$context"
rm -f "$context/code.deb" # no need to send it to the engine
say "fetching PyAutoGUI"
with_progress "build_image.sh: fetching PyAutoGUI" \
    quietly python3 -m pip wheel --quiet --no-deps --wheel-dir "$context/wheels" \
    pyautogui pymsgbox pytweening pyscreeze pygetwindow pyrect mouseinfo pyperclip
finish "${arguments[@]}"
