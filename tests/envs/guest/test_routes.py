"""The guest server as OSWorld's clients see it: no secret, the routes and forms of arXiv 2404.07972's code."""

import io
import re
import time
from contextlib import contextmanager

import httpx
import pytest
from PIL import Image

from arpo.envs.guest.client import poll_until
from tests.envs.desktops import IMAGE, START_LIMIT_S, docker, needs_desktop, run_as_root

pytestmark = needs_desktop


@contextmanager
def booted():
    container = docker("run", "--detach", "--init", "--publish", "127.0.0.1::5000", IMAGE).strip()
    try:
        port = docker("port", container, "5000/tcp").split(":")[1].split()[0]
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30, trust_env=False) as client:
            wait_for(lambda: is_healthy(client), START_LIMIT_S)
            yield client
    finally:
        docker("rm", "--force", container)


def is_healthy(client):
    try:
        return client.get("/health").is_success
    except httpx.TransportError:
        return False


@pytest.fixture(scope="module")
def guest():
    with booted() as client:
        yield client


@pytest.fixture
def clean(guest):
    assert guest.post("/setup/reset").is_success
    return guest


@pytest.mark.parametrize(("init", "is_up"), [(["--init"], True), ([], False)], ids=["with an init", "at once"])
def test_a_desktop_stops_when_it_is_told_to(init, is_up):
    container = docker("run", "--detach", *init, IMAGE).strip()
    try:
        wait_for(lambda: not is_up or "openbox" in docker("top", container))
        began = time.monotonic()
        docker("stop", "--time", "300", container)
        assert time.monotonic() - began < 150  # or it is the engine that has killed it
    finally:
        docker("rm", "--force", container)


def execute(guest, command, **more):
    return guest.post("/execute", json={"command": command, "shell": False, **more}).json()


def windows(guest):
    return [window["title"] for window in guest.get("/windows").json()]


def wait_for(condition, limit_s=120):
    assert poll_until(condition, limit_s, 0.05)


def at_rest(guest, quiet_s=0.3):
    answer = guest.get("/screenshot", params={"quiet_s": str(quiet_s), "limit_s": "10"})
    return Image.open(io.BytesIO(answer.content)).convert("RGB")


def click(guest, x, y, button=1):
    events = [["move", x, y], ["button_down", button], ["button_up", button]]
    assert guest.post("/action", json={"events": events}).is_success


def minimise_and_bring_back(guest):
    (window,) = guest.get("/windows").json()
    x, y, width, height = (window[name] for name in ("x", "y", "width", "height"))

    def shown():
        return at_rest(guest).crop((x, y, x + width, y + height)).tobytes()

    before = shown()
    click(guest, x + width - 42, y - 10)  # the first of three buttons of 16 pixels
    assert shown() != before
    click(guest, 200, 720 - 13)  # behind the launchers of four applications
    assert shown() == before


def test_a_program_gives_output_error_and_status(guest):
    done = execute(guest, ["sh", "-c", "echo out; echo err >&2; exit 3"])
    assert done == {"status": "success", "output": "out\n", "error": "err\n", "returncode": 3}
    assert execute(guest, "echo $HOME", shell=True)["output"] == "/home/user\n"
    assert execute(guest, "echo 'a b'")["output"] == "a b\n"
    assert execute(guest, ["ls", "~/Desktop"])["returncode"] == 0


@pytest.mark.parametrize("route", ["/execute", "/setup/launch"])
def test_a_program_that_does_not_exist_is_an_error(guest, route):
    answer = guest.post(route, json={"command": ["no-such-program"]})
    assert (answer.status_code, answer.json()["status"]) == (500, "error")
    assert "no-such-program" in answer.json()["message"]


@pytest.mark.parametrize("python", ["python", "python3"])
def test_the_warm_interpreter_means_what_a_new_one_means(guest, python):
    program = (
        "import pyautogui, sys, time; pyautogui.moveTo(30, 40); print(tuple(pyautogui.position())); "
        "print('oops', file=sys.stderr); sys.exit(4)"
    )
    execute(guest, [python, "-c", "import pyautogui"])
    wait_for(lambda: guest.get("/health").json()["warm"])
    warm = execute(guest, [python, "-c", program])
    assert warm == {"status": "success", "output": "(30, 40)\n", "error": "oops\n", "returncode": 4}
    assert guest.get("/cursor_position").json() == [30, 40]
    assert execute(guest, [python, "-c", "import pyautogui; print(pyautogui.PAUSE)"])["output"] == "0.1\n"
    assert execute(guest, [python, "-c", "import pyautogui; 1/0"])["returncode"] == 1
    assert "ZeroDivisionError" in execute(guest, [python, "-c", "import pyautogui; 1/0"])["error"]


def test_a_client_says_how_long_it_waits_for_the_window_of_a_file(clean):
    hurried = clean.post("/setup/open_file", json={"path": "~/Documents", "timeout_s": 0})
    assert hurried.status_code == 500
    assert "no window shows Documents after 0 s" in hurried.text


@pytest.mark.parametrize("count", [12, pytest.param(60, marks=pytest.mark.long)])
def test_windows_that_go_away_while_they_are_listed_are_left_out(clean, count):
    command = f"for i in $(seq {count}); do xterm -e sleep 0.05; done; touch ~/done"
    clean.post("/setup/launch", json={"command": command, "shell": True})
    titles = set()
    while not clean.post("/file", data={"file_path": "~/done"}).is_success:
        for _ in range(20):
            titles.update(windows(clean))
    assert titles == {"sleep"}


@pytest.mark.parametrize("count", [2, pytest.param(6, marks=pytest.mark.long)])
def test_an_application_that_ends_while_it_is_described_is_no_error(clean, count):
    command = f"for i in $(seq {count}); do timeout 1.5 galculator; timeout 0.4 mousepad; done; touch ~/described"
    clean.post("/setup/launch", json={"command": command, "shell": True})
    answers = []
    while not clean.post("/file", data={"file_path": "~/described"}).is_success:
        answers.append(clean.get("/accessibility"))
    assert [answer.text for answer in answers if not answer.is_success] == []
    assert any("<menu-item" in answer.json()["AT"] for answer in answers)


def test_a_minimised_window_comes_back_by_its_button_in_the_panel(clean):
    clean.post("/setup/launch", json={"command": ["xterm", "-title", "Hidden"]})
    wait_for(lambda: clean.get("/terminal").json()["output"] == "~ $")
    minimise_and_bring_back(clean)


def test_a_minimised_dialog_without_a_window_comes_back_too(clean):
    clean.post("/setup/launch", json={"command": ["mousepad"]})
    wait_for(lambda: len(windows(clean)) == 1)
    at_rest(clean)
    clean.post("/action", json={"events": [["text", "not saved"]]})
    at_rest(clean)
    execute(clean, ["pkill", "mousepad"])
    wait_for(lambda: windows(clean) == [])
    clean.post("/setup/launch", json={"command": ["mousepad"]})
    wait_for(lambda: windows(clean) == ["Mousepad"])  # its question about the last session, which asks for no button
    minimise_and_bring_back(clean)


def test_what_is_typed_after_a_change_of_windows_arrives_in_the_other_one(clean):
    for title in ("First", "Second"):
        clean.post("/setup/launch", json={"command": ["xterm", "-title", title, "-e", "cat"]})
        wait_for(lambda wanted=title: wanted in windows(clean))
        at_rest(clean)
    events = [["key_down", "alt"], ["key_down", "tab"], ["key_up", "tab"], ["key_up", "alt"]]
    assert clean.post("/action", json={"events": events}).is_success
    at_rest(clean)
    assert clean.post("/action", json={"events": [["text", "0123456789"]]}).is_success
    at_rest(clean)
    assert clean.get("/terminal").json()["output"] == "0123456789"
    active = clean.get("/accessibility").json()["AT"]
    assert re.search('name="First"[^>]*active="true"', active)


def test_a_key_that_is_held_types_once(clean):
    clean.post("/setup/launch", json={"command": ["xterm", "-e", "cat"]})
    wait_for(lambda: clean.get("/terminal").json()["output"] == "")
    events = [["key_down", "a"], ["sleep", 1.5], ["key_up", "a"]]
    assert clean.post("/action", json={"events": events}).is_success
    at_rest(clean)
    assert clean.get("/terminal").json()["output"] == "a"


def test_panel_and_menu_start_applications(clean):
    at_rest(clean)
    click(clean, 46, 720 - 13)  # the second launcher
    wait_for(lambda: any("Mousepad" in title for title in windows(clean)))
    at_rest(clean)
    click(clean, 900, 300, button=3)
    at_rest(clean)
    click(clean, 930, 300 + 9)  # the first line of the menu
    wait_for(lambda: len(windows(clean)) == 2)
    assert {window["class"] for window in clean.get("/windows").json()} == {"Mousepad", "Pcmanfm"}


def test_waiting_for_a_desktop_to_rest_wakes_no_program(clean):
    def wake_ups():
        both = "$(pgrep openbox) $(pgrep tint2)"
        found = execute(clean, f"for each in {both}; do grep ^voluntary /proc/$each/status; done", shell=True)
        return sum(int(line.split()[1]) for line in found["output"].splitlines())

    at_rest(clean)
    before, began = wake_ups(), time.monotonic()
    at_rest(clean, quiet_s=2.0)
    # Fifty looks a second, and whoever is awake looks busy. The panel wakes up five times a second by itself.
    assert wake_ups() - before < 15 * (time.monotonic() - began)


def test_a_new_desktop_and_one_after_a_reset_look_the_same_whatever_was_open(clean):
    def change():
        clean.post("/setup/launch", json={"command": ["galculator"]})
        wait_for(lambda: len(windows(clean)) == 1)
        script = "import Xlib.display as d; r = d.Display().screen().root; r.change_attributes(background_pixel=0)"
        execute(clean, ["python3", "-c", script + "; r.clear_area(); r.get_geometry()"])
        execute(clean, ["pkill", "tint2"])
        click(clean, 500, 600, button=3)  # a menu, which is not the application's

    with booted() as first, booted() as second:
        wanted = at_rest(first)
        assert at_rest(second).tobytes() == wanted.tobytes()
    assert len(wanted.getcolors(wanted.width * wanted.height)) > 50  # icons
    assert wanted.getpixel((640, 300)) == (0x3C, 0x64, 0x78)
    assert wanted.getpixel((1279, 719)) != (0x3C, 0x64, 0x78)
    change()
    assert clean.post("/setup/reset").status_code == 200
    assert at_rest(clean, quiet_s=0).tobytes() == wanted.tobytes()


def test_no_application_has_to_look_at_every_font(guest):
    assert "DejaVu" in execute(guest, ["fc-match", "sans"])["output"]
    assert execute(guest, ["ls", "~/.cache/fontconfig"])["returncode"] != 0


def test_text_of_the_fast_way_and_of_pyautogui_can_be_mixed(clean):
    """Both teach the same spare keys what the keyboard has not."""
    many = "".join(chr(0x4E00 + 7 * number) for number in range(60))  # more than there are spare keys
    clean.post("/setup/launch", json={"command": ["mousepad", "~/mixed.txt"]})
    wait_for(lambda: any("mixed.txt" in title for title in windows(clean)))
    at_rest(clean)
    clean.post("/action", json={"events": [["text", "Aa1!<>\\ ü λ é€"]]})
    assert execute(clean, ["python", "-c", f"import pyautogui; pyautogui.write('<{many}')"])["returncode"] == 0
    clean.post("/action", json={"events": [["text", "é€漢"]]})
    save = [["key_down", "ctrl"], ["key_down", "s"], ["key_up", "s"], ["key_up", "ctrl"]]
    clean.post("/action", json={"events": save})
    wait_for(lambda: clean.post("/file", data={"file_path": "~/mixed.txt"}).is_success)
    assert clean.post("/file", data={"file_path": "~/mixed.txt"}).content.decode() == f"Aa1!<>\\ ü λ é€<{many}é€漢"


def test_an_unknown_event_or_key_is_refused_before_anything_is_played(guest):
    before = guest.get("/cursor_position").json()
    for event in (["jump"], ["key_down", "no-such-key"]):
        answer = guest.post("/action", json={"events": [["move", 1, 1], event]})
        assert answer.status_code == 500
        assert "unknown" in answer.json()["message"]
    assert guest.get("/cursor_position").json() == before


def test_a_script_does_not_run_elsewhere_than_it_was_asked_to(guest):
    refused = guest.post("/run_bash_script", json={"script": "touch ~/ran\ntrue", "working_dir": "/no/place"})
    assert (refused.status_code, refused.json()["status"]) == (400, "error")
    assert "there is no directory /no/place" in refused.json()["message"]
    assert guest.post("/file", data={"file_path": "~/ran"}).status_code == 404


def test_what_is_not_there_is_not_found(guest):
    assert guest.get("/nothing").status_code == 404
    assert guest.post("/window_size", data={"app_class_name": "none"}).status_code == 404
    assert guest.post("/setup/activate_window", json={"window_name": "none"}).status_code == 404


def test_a_reset_renews_what_the_user_has_locked_wherever_it_lies(guest):
    look = "ls -A ~ /tmp /tmp/.X11-unix /dev/shm /run/arpo /var/tmp; stat --format %a ~ ~/Documents"
    guest.post("/setup/reset")
    before = execute(guest, look, shell=True)["output"]
    make = "mkdir -p ~/deep/er; touch ~/deep/er/a ~/b /tmp/.X11-unix/a /dev/shm/a /run/arpo/a /var/tmp/a"
    execute(guest, f"{make}; chmod 0 ~/deep/er; chmod 555 ~/deep ~/Documents ~", shell=True)
    assert guest.post("/setup/reset").status_code == 200
    assert execute(guest, look, shell=True)["output"] == before


@pytest.mark.parametrize(
    ("change", "undo", "said"),
    [
        ("mkdir ~user/foreign && touch ~user/foreign/a", "rm -r ~user/foreign", ["foreign"]),
        ("sed -i '$ a # another' {0}", "sed -i '$ d' {0}", ["not as it was when it was new", ".bashrc"]),
    ],
    ids=["what it cannot remove", "what is not as it was when it was new"],
)
def test_a_reset_that_cannot_renew_something_says_so(guest, change, undo, said):
    container = execute(guest, "hostname")["output"].strip()
    run_as_root(container, change.format("/etc/skel/.bashrc"))
    answer = guest.post("/setup/reset")
    assert answer.status_code == 500
    assert all(word in answer.json()["message"] for word in said)
    run_as_root(container, undo.format("/etc/skel/.bashrc"))
    assert guest.post("/setup/reset").status_code == 200


def test_a_program_that_waits_for_ever_is_ended_and_blamed(clean):
    answer = clean.post("/execute", json={"command": "mkfifo ~/pipe; cat ~/pipe", "shell": True, "timeout_s": 1.0})
    assert answer.status_code == 504
    assert "did not end within 1 s" in answer.json()["message"]
    assert execute(clean, ["pgrep", "-x", "cat"])["returncode"] == 1
    assert clean.post("/file", data={"file_path": "~/pipe"}).status_code == 404


def test_a_program_is_verified_by_a_window_that_it_opens(clean):
    def verified(limit_s, **wanted):
        step = {"command": ["true"], "verification": wanted, "max_wait_time": limit_s, "check_interval": 0.1}
        return clean.post("/setup/execute_with_verification", json=step)

    answer = verified(0.3, window_exists="Proof")
    assert (answer.status_code, answer.json()["message"]) == (500, "the verification failed")
    clean.post("/setup/launch", json={"command": "sleep 0.5; exec xterm -title 'The Proof'", "shell": True})
    answer = verified(20, window_exists="Proof")
    assert (answer.status_code, answer.json()["status"]) == (200, "success")
    assert answer.json()["wait_time"] > 0.1
    assert verified(0.3, window_exists="Proof", command_success="false").status_code == 500


WINDOWS = """
import time
from Xlib import display
screen = display.Display()
names = screen.intern_atom("_NET_WM_NAME"), screen.intern_atom("UTF8_STRING")
for number in range(60):
    window = screen.screen().root.create_window(0, 0, 100, 100, 0, screen.screen().root_depth)
    window.set_wm_class("é" * 1000, "é" * 1000)
    window.change_property(*names, 8, (f"{number} " + "🙂" * 1000).encode())
    window.map()
    screen.sync()
time.sleep(1000)
"""
"""Each takes 24 kB of a list in JSON, for an emoji is written with twelve characters there."""


def test_of_more_windows_than_a_client_reads_the_oldest_are_listed(clean):
    clean.post("/setup/launch", json={"command": ["python3", "-c", WINDOWS]})
    wait_for(lambda: len(clean.get("/windows").content) > 1_000_000)
    answer = clean.get("/windows")
    assert 2**20 - 2**15 < len(answer.content) < 2**20
    shown = [window["title"].split()[0] for window in answer.json()]
    assert shown == [str(number) for number in range(len(shown))]


def test_a_program_that_writes_without_end_is_cut(guest):
    done = execute(guest, ["cat", "/dev/zero"])
    assert (len(done["output"]), done["returncode"]) == (320 * 1024, -9)


def test_a_file_without_end_is_none(guest):
    execute(guest, "truncate -s 32M ~/full ~/more; echo >> ~/more", shell=True)
    execute(guest, "truncate -s 1T ~/large; ln -s /dev/zero ~/endless", shell=True)
    assert len(guest.post("/file", data={"file_path": "~/full"}).content) == 2**25
    for name in ("more", "large", "endless"):
        assert guest.post("/file", data={"file_path": f"~/{name}"}).status_code == 404


def test_a_reset_ends_programs_renews_files_and_lets_go_of_keys(guest):
    execute(guest, "touch ~/mine /tmp/mine; sleep 100 >/dev/null 2>&1 &", shell=True)
    guest.post("/setup/launch", json={"command": ["mousepad"]})
    wait_for(lambda: len(windows(guest)) > 0)
    guest.post("/action", json={"events": [["key_down", "shift"], ["key_down", "capslock"], ["key_up", "capslock"]]})
    assert guest.post("/setup/reset").status_code == 200
    assert windows(guest) == []
    assert execute(guest, "ls ~ /tmp; pgrep -c 'mousepad|sleep'", shell=True)["output"].split("\n") == [
        "/home/user:", "Desktop", "Documents", "", "/tmp:", "0", "",
    ]  # fmt: skip
    state = execute(guest, ["python3", "-c", "import Xlib.display as d; print(any(d.Display().query_keymap()))"])
    assert state["output"] == "False\n"
