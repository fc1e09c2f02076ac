"""Our desktop without a secret, driven by OSWorld's own clients as they are: what they call an error fails a test."""

import base64
import io
import json
import subprocess
import time
from pathlib import Path
from xml.etree import ElementTree

import pytest
from PIL import Image

from arpo.envs.guest.client import poll_until
from tests.envs.desktops import needs_desktop
from tests.envs.guest.test_routes import booted
from tests.envs.osworld.guest import HOME, running_guest
from tests.envs.osworld.support import PYTHON, needs_graders

pytestmark = [*needs_desktop, needs_graders, pytest.mark.slow]

MAIN = Path(__file__).parent / "clients.py"
NOTE = f"{HOME}/Desktop/note.txt"
STATE = "{https://accessibility.ubuntu.example.org/ns/state}"
COMPONENT = "{https://accessibility.ubuntu.example.org/ns/component}"
ACTION = "{https://accessibility.ubuntu.example.org/ns/action}"


class Clients:
    """OSWorld's two controllers, in a process of the second environment."""

    def __init__(self, port, directory):
        command = [PYTHON, "-I", MAIN, str(port), directory]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, controller, method, *arguments):
        """Return what a method returns, and the errors that it logs or raises."""
        self._process.stdin.write(json.dumps([controller, method, *arguments]) + "\n")
        self._process.stdin.flush()
        reply = json.loads(self._process.stdout.readline(), object_hook=as_bytes)
        return reply["result"], reply["errors"]

    def python(self, method, *arguments):
        result, errors = self.ask("python", method, *arguments)
        assert errors == []
        return result

    def setup(self, **steps):
        config = [{"type": kind, "parameters": parameters} for kind, parameters in steps.items()]
        assert self.ask("setup", "setup", config) == (True, [])

    def tree(self):
        return ElementTree.fromstring(self.python("get_accessibility_tree"))

    def windows(self):
        return [frame.get("name") for frame in self.tree().findall("./application/frame")]

    def wait_for(self, title):
        wait_until(lambda: any(title in window for window in self.windows()))
        self.setup(sleep={"seconds": 1})

    def act(self, kind, **parameters):
        self.python("execute_action", {"action_type": kind, "parameters": parameters})

    def run(self, code):
        done = self.python("execute_python_command", code)
        assert (done["status"], done["returncode"], done["error"]) == ("success", 0, "")
        return done["output"]

    def close(self):
        self._process.stdin.close()
        self._process.wait(timeout=20)


def as_bytes(reply):
    return base64.b64decode(reply["base64"]) if set(reply) == {"base64"} else reply


def wait_until(condition):
    assert poll_until(condition, 30, 0.1)


@pytest.fixture(scope="module")
def clients(tmp_path_factory):
    with booted() as client:
        clients = Clients(client.base_url.port, tmp_path_factory.mktemp("cache"))
        yield clients
        clients.close()


@pytest.fixture
def note(clients):
    clients.setup(execute={"command": ["truncate", "--size=0", NOTE]}, launch={"command": ["mousepad", NOTE]})
    clients.wait_for("note.txt")

    def saved():
        clients.act("HOTKEY", keys=["ctrl", "s"])
        clients.setup(sleep={"seconds": 0.5})
        return clients.python("get_file", NOTE).decode()

    yield saved
    saved()  # it would ask about changes, and after a kill about the session
    clients.act("HOTKEY", keys=["ctrl", "q"])
    wait_until(lambda: clients.windows() == [])


@pytest.fixture
def first_line(clients, note):
    x, y = numbers(clients.tree().find(".//text").get(f"{COMPONENT}screencoord"))
    return x + 5, y + 10


def numbers(pair):
    return [int(number) for number in pair.strip("()").split(", ")]


def test_what_the_client_asks_about_the_machine(clients):
    assert Image.open(io.BytesIO(clients.python("get_screenshot"))).size == (1280, 720)
    assert clients.python("get_vm_screen_size") == {"width": 1280, "height": 720}
    assert clients.python("get_vm_platform") == "Linux"
    assert clients.python("get_vm_desktop_path") == f"{HOME}/Desktop"


def test_files_are_uploaded_downloaded_and_listed(clients, tmp_path):
    content = bytes(range(256)) * 1000
    (tmp_path / "local.bin").write_bytes(content)
    with running_guest() as web:
        web.web = {"/web/list.txt": b"bread\n"}
        up = {"local_path": str(tmp_path / "local.bin"), "path": f"{HOME}/Documents/up.bin"}
        down = {"url": f"{web.address}/web/list.txt", "path": f"{HOME}/Documents/down.txt"}
        clients.setup(upload_file={"files": [up]}, download={"files": [down]})
    assert clients.python("get_file", "~/Documents/up.bin") == content
    assert clients.python("get_file", "$HOME/Documents/down.txt") == b"bread\n"
    files = [{"type": "file", "name": name} for name in ("down.txt", "up.bin")]
    tree = {"type": "directory", "name": "Documents", "children": files}
    assert clients.python("get_vm_directory_tree", f"{HOME}/Documents") == tree


def test_the_keyboard_types_into_the_application(clients, note):
    clients.act("TYPING", text='It\'s 50% of "A\\B"!\nx')
    clients.act("PRESS", key="backspace")
    clients.act("KEY_DOWN", key="shift")
    clients.act("PRESS", key="b")
    clients.act("KEY_UP", key="shift")
    clients.run('pyautogui.hotkey("shift", ",")')
    assert note() == 'It\'s 50% of "A\\B"!\nB<'
    clients.act("HOTKEY", keys=["ctrl", "a"])
    clients.act("TYPING", text="done")
    assert note() == "done"


def test_code_that_uses_pyautogui_types_every_character_exactly(clients, note):
    """`<` came out as `>` and `é€` not at all: PyAutoGUI has a list of an American keyboard."""
    text = "<a> & 'b' \"c\" {d} [e] \\~|@#$%^*_+= é€ñßЯλ漢字🙂"
    clients.run(f"pyautogui.typewrite({text!r}); pyautogui.write('\\n\\tx'); pyautogui.press('<')")
    clients.run("pyautogui.hotkey('shift', 'é'); pyautogui.keyDown('>'); pyautogui.keyUp('>')")
    assert note() == f"{text}\n\tx<é>"


def test_the_mouse_moves_clicks_and_drags(clients, note, first_line):
    x, y = first_line
    clients.act("TYPING", text="one two three\nfour")
    clients.act("MOVE_TO", x=x, y=y)
    assert clients.run("print(*pyautogui.position())") == f"{x} {y}\n"
    clients.act("DOUBLE_CLICK", x=x, y=y)
    clients.act("TYPING", text="1")
    assert note() == "1 two three\nfour"
    clients.act("CLICK", button="left", x=x + 25, y=y, num_clicks=2)
    clients.act("TYPING", text="2")
    assert note() == "1 2 three\nfour"
    clients.act("MOVE_TO", x=x + 200, y=y)
    clients.act("MOUSE_DOWN")
    clients.act("MOVE_TO", x=x - 4, y=y)
    clients.act("MOUSE_UP", button="left")
    clients.act("TYPING", text="moved")
    assert note() == "moved\nfour"
    clients.act("MOVE_TO", x=x + 200, y=y)
    clients.act("DRAG_TO", x=x - 4, y=y)
    clients.act("TYPING", text="dragged")
    assert note() == "dragged\nfour"


def test_the_wheel_scrolls(clients, note, first_line):
    clients.act("TYPING", text="\n" * 60)
    x, y = first_line
    clients.act("MOVE_TO", x=x, y=y)
    for dy, text in ((100, "top"), (-100, "bottom")):
        clients.act("SCROLL", dx=0, dy=dy)
        clients.setup(sleep={"seconds": 0.5})
        clients.act("CLICK")
        clients.act("TYPING", text=text)
    lines = note().split("\n")
    assert lines[0] == "top"
    assert "bottom" in lines[30:]


def test_a_menu_opens_by_the_right_button(clients, note, first_line):
    clients.act("TYPING", text="all of it")
    clients.act("RIGHT_CLICK", x=first_line[0], y=first_line[1])
    clients.act("PRESS", key="a")  # Select All
    clients.act("TYPING", text="nothing")
    assert note() == "nothing"


def test_windows_come_to_the_front_and_close(clients):
    for title, size in (("First", "40x10"), ("Second", "50x12")):
        names = ["-class", f"X{title}", "-name", title.lower()]
        clients.setup(launch={"command": ["xterm", "-title", title, "-geometry", size, *names]})
        clients.wait_for(title)
    clients.setup(activate_window={"window_name": "First", "strict": True})
    clients.setup(sleep={"seconds": 0.5})
    clients.act("TYPING", text="touch ~/first\n")
    wait_until(lambda: clients.ask("python", "get_file", "~/first")[0] is not None)
    frames = clients.tree().findall("./application/frame")
    for name, frame in zip(("XFirst", "SECOND"), frames, strict=True):  # class or instance, in any case
        width, height = numbers(frame.get(f"{COMPONENT}size"))
        assert clients.python("get_vm_window_size", name) == {"width": width, "height": height}
    assert [frame.get(f"{STATE}active") for frame in frames] == ["true", None]
    clients.setup(close_window={"window_name": "second.XSecond", "strict": True, "by_class": True})
    wait_until(lambda: clients.windows() == ["First"])
    assert clients.ask("setup", "_close_window_setup", "XFirst", True, True)[1] != []
    clients.setup(close_window={"window_name": "xfirst", "by_class": True})
    wait_until(lambda: clients.windows() == [])


def test_the_tree_describes_the_widgets_of_an_application(clients, note):
    clients.act("TYPING", text="a < b\nc")
    tree = clients.tree()
    (frame,) = tree.findall("./application[@name='mousepad']/frame")
    assert frame.get(f"{STATE}active") == "true"
    (text,) = frame.iter("text")
    assert text.text == "a < b\nc"
    assert text.get(f"{STATE}multi_line") == "true"
    x, y = numbers(text.get(f"{COMPONENT}screencoord"))
    width, height = numbers(text.get(f"{COMPONENT}size"))
    assert 0 <= x < x + width <= 1280
    assert 0 <= y < y + height <= 720
    menu = next(menu for menu in frame.iter("menu") if menu.get("name") == "File")
    assert menu.get(f"{ACTION}click_kb", "").startswith("<Alt>f")


def test_an_application_that_stands_still_costs_the_tree_no_more_than_itself(clients, note):
    clients.setup(launch={"command": ["galculator"]})
    clients.wait_for("galculator")
    clients.setup(execute={"command": ["pkill", "-STOP", "galculator"]})
    began = time.monotonic()
    tree = clients.tree()
    assert time.monotonic() - began < 10
    assert tree.find("./application[@name='mousepad']//text") is not None
    assert "galculator" in [frame.get("name") for frame in tree.findall("./application/frame")]
    clients.setup(execute={"command": ["pkill", "-KILL", "galculator"]})
    wait_until(lambda: "galculator" not in clients.windows())


def test_the_terminal_in_front_says_what_it_shows(clients):
    assert clients.python("get_terminal_output") is None
    for title, command in (("First", "seq 3; echo é漢"), ("Second", "seq 100; echo last")):
        clients.setup(launch={"command": ["xterm", "-title", title, "-e", f"{command}; exec cat"]})
        clients.wait_for(title)
    assert clients.python("get_terminal_output").endswith("99\n100\nlast")
    clients.setup(activate_window={"window_name": "First", "strict": True}, sleep={"seconds": 0.5})
    clients.act("TYPING", text="typed  <&>")
    assert clients.python("get_terminal_output") == "1\n2\n3\né漢\ntyped  <&>"
    clients.setup(execute={"command": ["pkill", "xterm"]})
    wait_until(lambda: clients.windows() == [])
    assert clients.python("get_terminal_output") is None


def test_a_file_opens_in_its_application(clients):
    clients.setup(execute={"command": "echo hello > ~/letter.txt", "shell": True}, open={"path": "~/letter.txt"})
    assert ["letter.txt" in title for title in clients.windows()] == [True]
    clients.setup(close_window={"window_name": "letter.txt"})
    wait_until(lambda: clients.windows() == [])
    assert "404" in clients.ask("setup", "setup", [{"type": "open", "parameters": {"path": "~/none"}}])[1][-1]


def test_programs_run_until_they_did_what_was_wanted(clients, tmp_path_factory):
    once = "echo x >> ~/times; wc --lines < ~/times"
    clients.setup(execute={"command": once, "shell": True, "until": {"stdout": "3"}})
    assert clients.python("get_file", "~/times") == b"x\nx\nx\n"
    made = {"command": ["touch", "~/made"], "verification": {"command_success": "test -e ~/made"}}
    clients.setup(execute_with_verification=made)
    step = {"command": ["true"], "verification": {"command_success": "false"}, "max_wait_time": 1}
    _, errors = clients.ask("setup", "setup", [{"type": "execute_with_verification", "parameters": step}])
    assert "the verification failed" in errors[-1]
    done = clients.python("run_bash_script", "pwd; exit 2", 5, "/usr")
    assert (done["output"], done["returncode"]) == ("/usr\n", 2)
    assert clients.python("run_python_script", "print(6 * 7)")["output"] == "42\n"
