#!/usr/bin/env bash
# End the engine that start_engine.sh has started in DIRECTORY, and its containers. Its images stay there.
#   stop_engine.sh [DIRECTORY]
# Every other engine is left alone.
set -euo pipefail

directory=${1:-/var/lib/arpo-engine}
say() { echo "stop_engine.sh: $*"; }

pid=$(cat "$directory/dockerd.pid" 2>/dev/null || true)
lives() { grep --quiet --text dockerd "/proc/$pid/cmdline" 2>/dev/null; } # empty for a process that nobody collected
if [ -z "$pid" ] || ! lives; then
    say "no engine runs in $directory"
    exit 0
fi
engine=(docker --host "unix://$directory/docker.sock")
"${engine[@]}" ps --all --quiet | xargs --no-run-if-empty "${engine[@]}" rm --force --volumes >/dev/null
kill "$pid"
for _ in $(seq 150); do
    lives || break
    sleep 0.1
done
! lives || { say "the engine with process id $pid does not end within 15 s" >&2; exit 1; }
if mountpoint --quiet "$directory/data"; then # the daemon mounts it onto itself
    umount "$directory/data"
fi
say "the engine has ended; \`rm -rf $directory\` removes its images too"
