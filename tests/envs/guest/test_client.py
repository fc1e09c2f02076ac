"""The guest's client against a server that misbehaves, without Docker."""

import json
import threading
import time

import pytest

from arpo.envs.guest import client
from arpo.envs.guest.client import CallResult, Deadlines, Guest, HangingProgramError
from arpo.envs.guest.transport import Answer, BrokenConnectionError
from arpo.envs.protocol import Execution
from arpo.errors import DesktopDestroyedError, EnvError
from tests.envs.osworld.guest import running_guest


@pytest.fixture
def server():
    with running_guest() as server:
        server.says = lambda content, status=200: setattr(server, "answer", lambda *_: (status, content))
        server.says(b"{}")
        yield server


@pytest.fixture
def guest(server):
    guest = Guest(server.address, "hush", Deadlines(call_s=0.5, window_s=0.1))
    yield guest
    guest.close()


def test_every_request_carries_the_secret_if_there_is_one_and_asks_for_nothing_packed(server, guest):
    server.says(b"[]")
    guest.titles()
    guest.play([("move", 1, 2)])
    Guest(server.address).play([("move", 1, 2)])
    assert [headers.get("Authorization") for *_, headers, _ in server.asked] == ["Bearer hush", "Bearer hush", None]
    assert server.asked[-1][3]["Accept-Encoding"] == "identity"


def test_a_connection_that_breaks_is_tried_again_once_where_nothing_changes(server, guest):
    server.says(b"[]")
    server.lies["/windows"] = lambda _: server.lies.clear()
    assert guest.titles() == []
    assert len(server.asked) == 2
    server.lies = dict.fromkeys(("/windows", "/action"), lambda _: None)
    with pytest.raises(EnvError, match=r"GET /windows of .*RemoteProtocolError"):
        guest.titles()
    assert len(server.asked) == 4
    with pytest.raises(EnvError, match="POST /action"):  # an action is never repeated
        guest.play([("button_down", 1)])
    assert len(server.asked) == 5


def test_a_guest_that_says_nothing_is_given_up_at_the_deadline_and_not_asked_again(server, guest):
    over = threading.Event()
    server.lies["/windows"] = lambda _: over.wait(30)
    with pytest.raises(EnvError, match="ReadTimeout") as error:
        guest.titles()
    over.set()
    assert error.value.kind == "guest"
    assert len(server.asked) == 1


class Recording:
    """A transport that notes how long each call may take, and whose first call breaks where it is told so."""

    def __init__(self, breaks=False):
        self.breaks, self.limits = breaks, []

    def ask(self, *_, timeout_s, **__):
        self.limits.append(timeout_s)
        if self.breaks and len(self.limits) == 1:
            raise BrokenConnectionError("guest", "hung up")
        return Answer(200, b'{"output": ""}')


def test_every_kind_of_call_has_its_own_deadline():
    guest = Guest("http://guest", deadlines=Deadlines(call_s=1.0, program_s=2.0, open_s=3.0))
    guest._transport = Recording()
    guest.play([("move", 1, 2)], duration_s=0.5)
    guest.execute("true")
    guest.execute("true", timeout_s=9.0)
    guest.open_file("list.txt")
    guest.reset()
    assert guest._transport.limits == [1.5, 2.0, 9.0, 3.0, 2.0]


def test_a_second_attempt_has_only_the_time_that_the_first_one_left():
    guest = Guest("http://guest", deadlines=Deadlines(call_s=2.0))
    guest._transport = Recording(breaks=True)
    guest.check_health()
    first_s, second_s = guest._transport.limits
    assert second_s <= first_s - client.GET_PAUSE_S


@pytest.mark.parametrize("status", [401, 500])
def test_an_answer_that_is_no_success_is_an_error_with_what_the_guest_said(server, guest, status):
    server.says(b"so it is", status)
    with pytest.raises(EnvError, match=f"gave {status}: so it is"):
        guest.check_health()
    assert len(server.asked) == 1


def test_a_file_that_is_not_there_is_none(server, guest):
    server.says(b"", 404)
    assert guest.file("~/gone") is None
    server.says(b"text")
    assert guest.file("~/there") == b"text"


def test_programs_windows_and_keys_are_asked_for_by_their_routes(server, guest):
    window = {"window_name": "Editor", "strict": True, "by_class": False}
    guest.launch("mousepad", shell=True)
    guest.open_file("~/list.txt")
    guest.activate_window("Editor", strict=True)
    guest.close_window("Editor", strict=True)
    guest.reset()
    assert [(path, json.loads(body)) for _, path, body, *_ in server.asked] == [
        ("/setup/launch", {"command": "mousepad", "shell": True}),
        ("/setup/open_file", {"path": "~/list.txt", "timeout_s": 27.0}),
        ("/setup/activate_window", window),
        ("/setup/close_window", window),
        ("/setup/reset", {}),
    ]


def test_answers_become_records_and_what_is_no_json_is_an_error(server, guest):
    server.says(b"<html>")
    with pytest.raises(EnvError, match="which does not fit"):
        guest.titles()
    server.says(b'[{"id": 7, "title": "a", "class": "B", "x": 1, "y": 2, "width": 3, "height": 4}]')
    assert guest.titles() == ["a"]
    server.says(b'{"output": "o", "error": "e", "returncode": 3}')
    assert guest.execute(["true"]) == Execution("o", "e", 3)
    assert json.loads(server.asked[-1][2]) == {"command": ["true"], "shell": False, "timeout_s": 12.0}


def test_a_call_is_answered_by_what_became_of_it(server, guest):
    server.says(b'{"done": false, "said": "there is no file a"}')
    assert guest.call("mousepad.open", {"path": "a", "n": 3}) == CallResult(done=False, said="there is no file a")
    method, path, body, *_ = server.asked[0]
    assert (method, path) == ("POST", "/call")
    assert json.loads(body) == {"function": "mousepad.open", "arguments": {"path": "a", "n": 3}, "timeout_s": 12.0}
    server.says(b'{"said": ""}')
    with pytest.raises(EnvError, match="/call was answered with"):
        guest.call("mousepad.open", {})
    assert len(server.asked) == 2  # never tried a second time


def test_a_guest_says_which_functions_it_has_and_an_older_one_has_none(server, guest):
    server.says(b'[{"name": "f", "parameters": {"path": "str"}}]')
    assert guest.functions() == {"f": {"path": "str"}}
    server.says(b"", 404)
    assert guest.functions() == {}
    for answer in ((b"", 500), (b'[{"name": "f"}]',), (b'[{"name": "f", "parameters": {"path": 3}}]',)):
        server.says(*answer)
        with pytest.raises(EnvError):
            guest.functions()


@pytest.mark.parametrize(("status", "error"), [(409, DesktopDestroyedError), (504, HangingProgramError)])
def test_what_the_guest_blames_on_its_programs_has_an_error_of_its_own(server, guest, status, error):
    server.says(b"because", status)
    with pytest.raises(error, match="/setup/execute: because"):
        guest.execute(["true"])


def test_a_connection_is_used_again(server, guest):
    guest.check_health()
    guest.check_health()
    assert server.asked[0][-1] == server.asked[1][-1]


def test_waiting_ends_with_what_was_awaited_or_with_the_fault_of_a_poll(guest):
    def broken():
        raise EnvError("guest", "frozen")

    with pytest.raises(EnvError, match="frozen"):
        guest.wait_for(broken, "the moon")
    with pytest.raises(EnvError, match=r"the moon did not come within 0\.1 s"):
        guest.wait_for(lambda: False, "the moon")


def test_waiting_for_a_guest_that_has_ended_ends_at_once(server, guest):
    server.says(b"", 503)
    with pytest.raises(EnvError, match="ended while it started"):
        guest.wait_until_healthy(lambda: False)


def test_the_engine_is_asked_less_often_than_the_guest(server, guest):
    server.answer = lambda *_: (503 if len(server.asked) < 20 else 200, b"{}")
    asked_engine_at = []
    began = time.monotonic()
    guest.wait_until_healthy(lambda: asked_engine_at.append(time.monotonic()) or True)
    assert len(server.asked) == 20
    assert 1 <= len(asked_engine_at) <= 1 + (time.monotonic() - began) / client.ALIVE_POLL_S
