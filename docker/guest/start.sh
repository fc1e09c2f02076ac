#!/bin/sh
# First process of a desktop: closes the network where the launcher asks for it, then serves as a user without rights.
set -eu
if [ "${ARPO_NETWORK:-open}" = closed ]; then
    nft --file /opt/arpo/guest/closed_network.nft
fi
mkdir -p /tmp/.X11-unix
chmod 1777 /tmp/.X11-unix
secret=${ARPO_SECRET:-} # over standard input, where only the server finds it; any program can read an environment
unset ARPO_SECRET
exec setpriv --reuid user --regid user --init-groups --no-new-privs --inh-caps=-all --bounding-set=-all \
    python3 /opt/arpo/guest/server.py <<END
$secret
END
