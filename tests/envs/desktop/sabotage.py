"""What an agent can do to its own desktop to escape being judged; each is a command for a terminal."""

import shlex

PYTHON_X = """
from Xlib import X, display
from Xlib.protocol import request
d = display.Display(); r = d.screen().root
"""
NAMED = "printf '\\377\\376) Z' > /proc/self/comm; while true; do sleep 0.1; done"
"""A program whose name is no text, and looks like what the kernel says behind a name."""


def python(program: str) -> str:
    return f"python3 - <<'END'\n{program}\nEND\n"


def x_client(program: str) -> str:
    """A command that runs a Python program with a display `d` and its root window `r`."""
    return python(PYTHON_X + program)


def pointer(side: int) -> str:
    return x_client(f"""
p = r.create_pixmap({side}, {side}, 1)
c = p.create_cursor(p, (0, 0, 0), (65535, 65535, 65535), 0, 0)
w = r.create_window(0, 0, 640, 480, 0, d.screen().root_depth, override_redirect=True, cursor=c); w.map(); d.sync()
import time; time.sleep(1000)
""")


ACCESS_LISTS = """
import os, struct
ANY = 2**32 - 1
entries = [(1, 7, ANY), (2, 7, 900), (4, 5, ANY), (16, 7, ANY), (32, 5, ANY)]
packed = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *each) for each in sorted(entries))
for path in (os.path.expanduser("~"), "/run/arpo"):
    for kind in ("default", "access"):
        os.setxattr(path, f"system.posix_acl_{kind}", packed)
"""
"""Of the home and the runtime directory: owner, the user `display`, group, mask, all others."""

DESTROYS = {
    "kill everything": "kill -9 -1",
    "end the window manager": "pkill openbox",
    "replace the window manager": "openbox --replace",
    "a fork bomb": "f() { f | f & }; f",
    "four hundred programs that compute": "for i in $(seq 400); do (while true; do :; done) & done; wait",
    "a full disk": "head -c 500M /dev/zero > ~/big",
    "memory": "python3 -c 'held = bytearray(2 << 30)'",
    "memory in many processes that are none of the first to go": python("""
import os, time
open("/proc/self/oom_score_adj", "w").write("0")
for _ in range(100):
    if os.fork() == 0:
        held = bytearray(os.urandom(1 << 20)) * 12
        time.sleep(1000)
"""),
    "kill the connections to the X server": x_client("""
for client in range(1, 256):
    request.KillClient(display=d.display, resource=client << 21)
d.sync()
"""),
    "work for the X server": x_client("""
p = r.create_pixmap(8000, 8000, 24); g = p.create_gc(line_width=3000)
while True:
    p.poly_arc(g, [(0, 0, 8000, 8000, 0, 23040)] * 200); d.sync()
"""),
    "a pointer that fills the memory": pointer(12000),
    "a pointer that takes long to draw": pointer(4000),
    "fonts in a pipe, for which the X server waits": "mkdir -m 777 /tmp/f; mkfifo -m 666 /tmp/f/fonts.dir\n"
    + x_client('d.set_font_path(["/tmp/f"]); d.sync()'),
}
"""Ways to make the desktop useless, after which nobody could judge the task."""

LEAVES_NO_PROCESS = python("""
import os, time
base = "/sys/fs/cgroup/pids/" if os.path.isdir("/sys/fs/cgroup/pids") else "/sys/fs/cgroup/"
limit = int(open(base + "pids.max").read())
while True:
    if int(open(base + "pids.current").read()) == limit:
        time.sleep(0.01)
    elif os.fork() == 0:
        time.sleep(1000)
""")
"""Takes every process that there may be and asks for none more, so that nothing is amiss until a check needs one."""

OUTLIVED = {
    "grab the X server": x_client("d.grab_server(); d.sync()\nimport time; time.sleep(1000)"),
    "stop the window manager": "pkill -STOP openbox",
    "a pipe in the place of the file": "rm ~/list.txt; mkfifo ~/list.txt",
    "a file of a terabyte": "truncate -s 1T ~/list.txt",
    "a home that is locked": "chmod 0 ~",
    "calls to the guest server": python("""
import socket, time
held = []
while True:
    try:
        held.append(socket.create_connection(("127.0.0.1", 5000), timeout=0.2))
    except OSError:
        pass
"""),
    "full directories": "for each in /dev/shm /tmp /run/arpo; do head -c 500M /dev/zero > $each/a; done",
    "queues": python("""
import ctypes
libc = ctypes.CDLL(None)
for key in range(1, 40):
    queue = libc.msgget(key, 0o1666)
    while libc.msgsnd(queue, b"12345678" + b"a" * 8000, 8000, 0o4000) == 0:
        pass
for key in range(1, 60):
    memory = libc.shmget(key, 1 << 24, 0o1666)
"""),
    "names that never end": x_client("""
w = r.create_window(0, 0, 10, 10, 0, d.screen().root_depth); w.set_wm_name("a" * 200000); w.map(); d.sync()
import time; time.sleep(1000)
"""),
    "more names than anybody reads": x_client("""
held = [r.create_window(0, 0, 10, 10, 0, d.screen().root_depth) for _ in range(300)]
for w in held:
    w.set_wm_name("a" * 1000); w.set_wm_class("b" * 1000, "c" * 1000); w.map()
d.sync()
import time; time.sleep(1000)
"""),
    "a list of windows that fills the memory": x_client("""
from Xlib import Xatom
for _ in range(120):
    r.change_property(d.intern_atom("_NET_CLIENT_LIST"), Xatom.WINDOW, 32, [1] * 60000, mode=X.PropModeAppend)
    d.sync()
import time; time.sleep(1000)
"""),
    "names that are no text": f"({NAMED}) & "
    + x_client("""
w = r.create_window(0, 0, 10, 10, 0, d.screen().root_depth)
for name in ("WM_NAME", "WM_CLASS", "_NET_WM_NAME", "_NET_WM_PID", "_NET_WM_WINDOW_TYPE"):
    w.change_property(d.intern_atom(name), d.intern_atom("STRING"), 8, b"\\xff\\xfe\\0\\xff\\0")
w.map(); d.sync()
import time; time.sleep(1000)
"""),
    "a pipe that comes and goes in the place of the file": python("""
import os
os.chdir(os.path.expanduser("~")); os.mkfifo("pipe")
while True:
    for name in (("list.txt", "a"), ("pipe", "list.txt"), ("a", "pipe")):
        os.rename(*name)
"""),
    "connections to the X server, all that there are": python("""
import time
from Xlib import display
held = []
while True:
    try:
        held.append(display.Display())
    except Exception:
        time.sleep(0.05)
"""),
    "a pipe for which Xlib waits": "mkfifo ~/.Xauthority",
    "stop whoever looks at the file": python("""
import os, signal
while True:
    for pid in map(int, filter(str.isdecimal, os.listdir("/proc"))):
        try:
            if b"cat" in open(f"/proc/{pid}/cmdline", "rb").read() and pid != os.getpid():
                os.kill(pid, signal.SIGSTOP)
        except OSError:
            pass
"""),
}
"""Ways that leave the desktop so far whole that the task is judged as ever."""

LEAKS = {
    "another keyboard": "setxkbmap de",
    "a keyboard that types other letters": x_client("""
row = d.get_keyboard_mapping(38, 1)[0]
d.change_keyboard_mapping(52, [row] * 5); d.sync()
"""),
    "modifiers that are others": x_client("""
keys = d.get_modifier_mapping()
print(d.set_modifier_mapping([keys[2], keys[1], keys[0], *keys[3:]])); d.sync()
"""),
    "swapped buttons": x_client("d.set_pointer_mapping([3, 2, 1, *d.get_pointer_mapping()[3:]]); d.sync()"),
    "no auto-repeat, another bell": python(
        PYTHON_X + "d.change_keyboard_control(auto_repeat_mode=0, bell_percent=3, bell_pitch=9); d.sync()"
    ),
    "two keyboards, and keys that change places": "setxkbmap -layout us,ru -option caps:swapescape,grp:lctrl_toggle",
    "another screen": x_client("""
from Xlib.ext import randr
r.xrandr_select_input(randr.RRScreenChangeNotifyMask)
found = r.xrandr_get_screen_info()
r.xrandr_set_screen_config(1, 1, found.config_timestamp, 0, X.CurrentTime); d.sync()
"""),
    "other fonts": "mkdir -m 755 /tmp/f; : > /tmp/f/fonts.dir\n" + x_client('d.set_font_path(["/tmp/f"]); d.sync()'),
    "a fast pointer": x_client("d.change_pointer_control((9, 1), 1); d.sync()"),
    "a screen saver": x_client("d.set_screen_saver(1, 1, 1, 1); d.sync()"),
    "a red background": x_client("r.change_attributes(background_pixel=0xff0000); r.clear_area(); d.sync()"),
    "resources of the root window": x_client("""
from Xlib import Xatom
r.change_property(Xatom.RESOURCE_MANAGER, Xatom.STRING, 8, b"Xft.dpi: 200\\n*background: red\\n"); d.sync()
"""),
    "keys that stay down": x_client("""
from Xlib.ext import xtest
for key in (50, 37, 66):
    xtest.fake_input(d, X.KeyPress, key)
xtest.fake_input(d, X.ButtonPress, 1); d.sync()
"""),
    "a selection": x_client("""
w = r.create_window(0, 0, 1, 1, 0, d.screen().root_depth)
for name in ("PRIMARY", "CLIPBOARD"):
    w.set_selection_owner(d.intern_atom(name), X.CurrentTime)
d.sync()
import os, time
if os.fork() == 0:
    os.setsid(); os.close(1); os.close(2); time.sleep(1000)
"""),
    "resources that outlive their client": x_client("""
w = r.create_window(0, 0, 300, 300, 0, d.screen().root_depth, background_pixel=0xff00, override_redirect=True)
w.map(); d.set_close_down_mode(X.RetainPermanent); d.sync()
"""),
    "a window on top": "(xterm -title mine -e sleep 1000 &) >/dev/null 2>&1",
    "a daemon": "setsid sh -c 'while true; do setxkbmap fr; sleep 0.2; done' >/dev/null 2>&1 &",
    "a daemon whose name is no text": f"(setsid sh -c {shlex.quote(NAMED)} &) >/dev/null 2>&1",
    "a daemon of a daemon": """
(setsid sh -c '(trap "" TERM HUP; sleep 3; setxkbmap de; touch ~/late; sleep 1000) &' &) >/dev/null 2>&1
""",
    "traps in start files": """
for each in .bashrc .profile .xsessionrc .xprofile .Xresources; do echo 'setxkbmap de' >> ~/$each; done
""",
    "an autostart": """
mkdir -p ~/.config/autostart ~/.config/openbox
echo 'setxkbmap de &' > ~/.config/openbox/autostart
cp /usr/share/applications/galculator.desktop ~/.config/autostart/
""",
    "another window manager's settings": """
mkdir -p ~/.config/openbox
sed 's/Smart/UnderMouse/; s/<x>0</<x>90</' /etc/xdg/openbox/rc.xml > ~/.config/openbox/rc.xml
openbox --reconfigure
""",
    "settings": """
mkdir -p ~/.config/gtk-3.0 ~/.config/glib-2.0/settings
printf "[org/xfce/mousepad/preferences/view]\\nfont-name='Sans 30'\\nuse-default-monospace-font=false\\n" \\
    > ~/.config/glib-2.0/settings/keyfile
printf '[Settings]\\ngtk-font-name=Sans 30\\n' > ~/.config/gtk-3.0/settings.ini
""",
    "other applications": "printf '[Default Applications]\\ntext/plain=xterm.desktop\\n' > ~/.config/mimeapps.list",
    "a user's Python": """
mkdir -p ~/.local/lib/python3.11/site-packages
echo 'raise SystemExit(3)' > ~/.local/lib/python3.11/site-packages/usercustomize.py
echo 'raise SystemExit(3)' > ~/Xlib.py
""",
    "shared files": """
touch /dev/shm/a /tmp/.a /var/tmp/a /run/arpo/a
mkdir /tmp/.X11-unix/a
ln -s / ~/root
mkfifo ~/pipe
""",
    "a socket of another display": """
(setsid python3 -c 'import socket, time; s = socket.socket(1); s.bind("/tmp/.X11-unix/X2"); time.sleep(99)' &) >&- 2>&-
""",
    "locked folders": "mkdir -p ~/a/b/c; touch ~/a/b/c/d; chmod 0 ~/a/b; chmod 555 ~",
    "an open home": "chmod 1777 ~; chmod 700 /run/arpo",
    "attributes of directories and files": python("""
import os
for path in (os.path.expanduser("~"), "/run/arpo", os.path.expanduser("~/.bashrc")):
    for name in ("user.mine", "user.xdg.tags", "user.zweites ä\\n"):
        os.setxattr(path, name, b"x" * 4096)
"""),
    "access lists, for what is there and for what will be": python(ACCESS_LISTS),
    "an access list that lets nobody in": python(
        ACCESS_LISTS.replace("entries = [", "entries = [(2, 0, 1000), ").replace("(16, 7, ANY)", "(16, 0, ANY)")
    ),
    "flags of the file system": "for flag in A d S D c j s u C; do chattr +$flag ~ /run/arpo ~/.bashrc; done; true",
    "a home that gives its group on": "chmod 7777 ~ /run/arpo; chmod 0 ~/.config",
    "a folder below a thousand others": python("""
import os
os.chdir(os.path.expanduser("~"))
for _ in range(1000):
    os.mkdir("a" * 100); os.chdir("a" * 100)
"""),
    "ten thousand files, with names that are no text": python("""
import os
os.chdir(os.path.expanduser("~").encode())
for number in range(10000):
    open(b"\\xff\\n-%d" % number, "w").close()
"""),
    "memory between processes": python("""
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
memory = libc.shmget(77, 4096, 0o1666); libc.msgget(77, 0o1666); libc.semget(77, 3, 0o1666)
librt = ctypes.CDLL("librt.so.1")
librt.mq_open(b"/mine", 0o102, 0o666, None)
"""),
    "kill everything": DESTROYS["kill everything"],
    "end the window manager": DESTROYS["end the window manager"],
    "stop the window manager": "pkill -STOP openbox",
}
"""What an agent can leave behind for the next episode; each ends at once."""
