"""Ways to answer in the place of VLC; each is a command, for a desktop on which VLC shows nothing."""

from tests.envs.desktop.sabotage import python

FILM = "Rick Astley - Never Gonna Give You Up (Official Music Video).mp4"
ENDED = "pkill vlc; sleep 0.7\n"
HONEST = f"{ENDED}vlc '/home/user/Desktop/{FILM}'"
INFORMATION = f'<information><category name="meta"><info name="filename">{FILM}</info></category></information>'
STATUS = f"<root><state>playing</state>{INFORMATION}</root>"
SAYS = f"""
import os, select, socket, time
BODY = {STATUS.encode()!r}
ANSWER = b"HTTP/1.1 200 OK\\r\\nContent-Length: %d\\r\\nConnection: close\\r\\n\\r\\n" % len(BODY) + BODY
def listen(address, family=socket.AF_INET):
    made = socket.socket(family)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    made.bind((address, 8080))
    made.listen(9)
    return made
def serve(listening):
    while True:
        taken, _ = listening.accept()
        taken.recv(9999)
        taken.sendall(ANSWER)
        taken.close()
def become_vlc(taken):
    taken.set_inheritable(True)
    os.execv("/usr/local/bin/vlc", ["vlc"])
"""


def server(program):
    return ENDED + python(SAYS + program)


def pages(folder):
    return f"{ENDED}mkdir -p {folder}/requests; printf '%s' '{STATUS}' > {folder}/requests/status.xml\n"


def gone_again(setting):
    """A command that starts VLC with a setting, and takes it back."""
    rc = "~/.config/vlc/vlcrc"
    return f"{pages('/tmp/pages')}cp {rc} /tmp/rc; printf '\\n{setting}\\n' >> {rc}; (vlc &); sleep 3; cp /tmp/rc {rc}"


WAYS = {
    "listen on its port": server('serve(listen("127.0.0.1"))'),
    "listen on its port of IPv6": server('serve(listen("::", socket.AF_INET6))'),
    "answer and become VLC": server("""
listening = listen("127.0.0.1")
while True:
    taken, _ = listening.accept()
    taken.sendall(ANSWER)
    if os.fork() == 0:
        become_vlc(taken)
    taken.close()
"""),
    "become VLC and let another one answer": server("""
listening = listen("127.0.0.1")
one, two = socket.socketpair()
if os.fork() == 0:
    while True:
        time.sleep(0.3)
        serve_one = socket.socket(fileno=socket.recv_fds(two, 1, 1)[1][0])
        serve_one.sendall(ANSWER)
        serve_one.close()
while True:
    taken, _ = listening.accept()
    if os.fork() == 0:
        socket.send_fds(one, [b"x"], [taken.fileno()])
        become_vlc(taken)
    taken.close()
"""),
    "connections of VLC with the same numbers": ENDED
    + "sed -i 's/^http-port/http-host=127.0.0.2\\nhttp-port/' ~/.config/vlc/vlcrc; (vlc &); sleep 2\n"
    + python(
        SAYS
        + """
listening, held = listen("127.0.0.1"), []
while True:
    select.select([listening], [], [])
    rows = [row.split() for row in open("/proc/net/tcp").read().splitlines()[1:]]
    for port in {int(row[2][9:], 16) for row in rows if row[1] == "0100007F:1F90" and row[3] == "01"}:
        for number in range(3, 200):
            try:
                made = socket.socket()
                held.append(made)
                made.bind((f"127.0.0.{number}", port))
                made.connect(("127.0.0.2", 8080))
            except OSError:
                pass
    taken, _ = listening.accept()
    taken.recv(9999)
    taken.sendall(ANSWER)
    taken.close()
"""
    ),
    "stop it when it has taken the connection": "while :; do pkill -STOP vlc; sleep 0.01; pkill -CONT vlc; done",
    "pages in the home directory": pages("~/.local/share/vlc/lua/http") + "vlc",
    "pages in another home directory": pages("/tmp/h/.local/share/vlc/lua/http")
    + "mkdir /tmp/h/.config; cp -r ~/.config/vlc /tmp/h/.config; HOME=/tmp/h vlc & HOME=/tmp/h /usr/bin/vlc",
    "pages of its command line": pages("/tmp/pages") + "vlc --http-src=/tmp/pages",
    "pages of an abbreviation": pages("/tmp/pages") + "vlc --http-sr /tmp/pages",
    "pages of other settings": pages("/tmp/pages")
    + "(cat ~/.config/vlc/vlcrc; echo http-src=/tmp/pages) > /tmp/rc; vlc --config /tmp/rc",
    "pages of settings that are gone again": gone_again("[lua]\\nhttp-src=/tmp/pages"),
    "a script of settings that are gone again": gone_again('[lua]\\nlua-config=http={dir="/tmp/pages"}'),
    "the program without its settings": gone_again("[lua]\\nhttp-src=/tmp/pages").replace("(vlc", "(/usr/bin/vlc"),
    "a library": pages("/tmp/pages") + "LD_PRELOAD=libm.so.6 vlc --http-src=/tmp/pages",
    "data of its own": pages("/tmp/d/vlc/lua/http") + "XDG_DATA_HOME=/tmp/d /usr/bin/vlc",
}
"""By what they do."""
