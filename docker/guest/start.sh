#!/bin/sh
# First process of a desktop: closes the network as far as the launcher asks for it, gives up every right but those by which
# the guest server starts and ends programs of other users, and becomes that server.
set -eu
case ${ARPO_NETWORK:-} in
    closed) nft --define "answers={ 5000${ARPO_ANSWERS:+, $ARPO_ANSWERS} }" --file /opt/arpo/guest/closed_network.nft ;;
    open) nft --file /opt/arpo/guest/open_network.nft ;;
esac
mkdir -p /tmp/.X11-unix
chmod 1777 /tmp/.X11-unix
secret=${ARPO_SECRET:-} # over standard input, where only the server finds it
unset ARPO_SECRET
rights=-all,+kill,+setgid,+setpcap,+setuid,+sys_nice
# -s and -E: no module and no setting of the home directory, where programs of an earlier start may have left some.
exec setpriv --clear-groups --no-new-privs --inh-caps=-all --bounding-set=$rights \
    python3 -BEs /opt/arpo/guest/server.py <<END
$secret
END
