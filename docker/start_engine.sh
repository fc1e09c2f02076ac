#!/usr/bin/env bash
# Install and start a Docker engine on a bare Debian machine, as root, with or without systemd.
#   eval "$(start_engine.sh [DIRECTORY])"     prints the line that leads `docker` and this package to the engine
# An engine that answers already is used as it is. One daemon a machine: a second one breaks the first one's network.
# ARPO finds an engine in the default DIRECTORY without being led there; stop_engine.sh ends it.
set -euo pipefail

directory=${1:-/var/lib/arpo-engine}
. "$(cd "${BASH_SOURCE[0]%/*}" && pwd)/progress.sh"
use_if_it_answers() {
    docker info >/dev/null 2>&1 || return 0
    echo "export DOCKER_HOST=${DOCKER_HOST:-unix:///var/run/docker.sock}"
    exit 0
}
use_if_it_answers
unset DOCKER_HOST # what it names does not answer, perhaps the usual place does
use_if_it_answers

if ! { command -v dockerd && command -v iptables && command -v ip && command -v mmdebstrap; } >/dev/null; then
    export DEBIAN_FRONTEND=noninteractive
    install_packages() {
        apt-get -qq update && apt-get -qq install -y --no-install-recommends docker.io iptables iproute2 mmdebstrap
    }
    with_progress "start_engine.sh: installing Docker's packages" quietly install_packages
    use_if_it_answers # with systemd, the package starts an engine
fi

export DOCKER_HOST=unix://$directory/docker.sock
use_if_it_answers # an earlier call has started it

# After a kill -9 the daemon waits for processes that its pid files name, though they are gone or were never collected.
forget_if_dead() {
    local state
    [ -e "$1" ] || return 0
    state=$(sed 's/.*) //; s/ .*//' "/proc/$(cat "$1")/stat" 2>/dev/null || true)
    case $state in '' | Z | X) rm -f "$1" ;; esac
}
mkdir -p "$directory"
for name in dockerd.pid run/containerd/containerd.pid run/containerd/containerd.toml.pid; do
    forget_if_dead "$directory/$name"
done

# Containers that were killed together with their engine keep their addresses on its bridge, and the next engine gives
# the same ones to others, which cannot be reached then. Where an engine or a container lives, the bridge is left alone.
forget_dead_cables() {
    local cable living='(^|/)(dockerd|containerd-shim[^/]*)$'
    ip link show docker0 >/dev/null 2>&1 || return 0 # no engine has been here
    if grep --quiet --null-data --extended-regexp "$living" /proc/[0-9]*/cmdline 2>/dev/null; then return; fi
    ip -oneline link show master docker0 2>/dev/null | sed 's/^[0-9]*: \([^@:]*\).*/\1/' | while read -r cable; do
        ip link delete "$cable"
    done
}
forget_dead_cables

start() { # options of the daemon
    setsid dockerd --data-root "$directory/data" --exec-root "$directory/run" --pidfile "$directory/dockerd.pid" \
        --host "$DOCKER_HOST" --live-restore --log-level warn "$@" >>"$directory/dockerd.log" 2>&1 </dev/null &
    local daemon=$!
    for _ in $(seq 300); do
        docker info >/dev/null 2>&1 && return 0
        kill -0 "$daemon" 2>/dev/null || return 1
        sleep 0.1
    done
    kill "$daemon"
    return 1
}
start --storage-driver overlay2 || start --storage-driver vfs || {
    echo "start_engine.sh: the engine does not start; its log ends with" >&2
    tail -5 "$directory/dockerd.log" >&2
    exit 1
}
echo "export DOCKER_HOST=$DOCKER_HOST"
