#!/usr/bin/env bash
# End the engine that start_engine.sh has started in DIRECTORY, and its containers. Its images stay there.
#   stop_engine.sh [DIRECTORY]
# Every other engine is left alone.
set -euo pipefail

directory=${1:-/var/lib/arpo-engine}
directory=$(realpath --canonicalize-missing "$directory") # as the kernel names its mounts
say() { echo "stop_engine.sh: $*"; }

# The daemon mounts its data onto itself, and namespaces and containers below it; some stay when it ends, all when it is
# killed. `rm -rf` would stop at each.
unmount_below() {
    local escaped place
    tac /proc/self/mountinfo | while read -r _ _ _ _ escaped _; do # the newest first
        printf -v place %b "$escaped"
        case $place in "$directory"/*) umount "$place" 2>/dev/null || umount --lazy "$place" 2>/dev/null || true ;; esac
    done # one that is shared goes with another; one that cannot go is named by `rm`
}

pid=$(cat "$directory/dockerd.pid" 2>/dev/null || true)
lives() { grep --quiet --text dockerd "/proc/$pid/cmdline" 2>/dev/null; } # empty for a process that was not collected
if [ -z "$pid" ] || ! lives; then
    unmount_below
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
unmount_below
say "the engine has ended; \`rm -rf $directory\` removes its images too"
