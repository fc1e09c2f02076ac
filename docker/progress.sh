# Sourced by the scripts beside it.

with_progress() { # WHAT COMMAND…: run the command; say on stderr every PROGRESS_S seconds, 8, what it is and for how long
    local what=$1 started=$SECONDS status=0 never ticker
    shift
    exec {never}<> <(:)
    # `read` waits here: a `sleep` would outlive its ticker and hold the output open.
    while ! read -rt "${PROGRESS_S:-8}" -u "$never"; do echo "$what ($((SECONDS - started)) s)"; done >&2 &
    ticker=$!
    "$@" || status=$?
    kill "$ticker"
    wait "$ticker" 2>/dev/null || true
    exec {never}>&-
    return "$status"
}

quietly() { # COMMAND…: run the command; show what it says only where it fails
    local said status=0
    said=$(mktemp) # no pipe: a daemon that the command starts would hold it open
    "$@" >"$said" 2>&1 || status=$?
    [ "$status" = 0 ] || cat "$said" >&2
    rm -f "$said"
    return "$status"
}
