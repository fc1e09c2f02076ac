"""A browser of one's own: a program that speaks DevTools plays the page, and can break nothing but its own episode."""

import json
from contextlib import closing

import psutil
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from arpo.envs.miniwob.env import MiniWobEnv
from arpo.envs.miniwob.tasks import miniwob_task
from arpo.errors import BlamedError
from tests.browser import needs_chromium
from tests.host.watchdogs import wait_until

pytestmark = [pytest.mark.browser, needs_chromium]
TASK = miniwob_task("click-test", 1)
CENTRE = "(box => [box.x + box.width / 2, box.y + box.height / 2])(subbtn.getBoundingClientRect())"


class Client:
    """A program's side: commands with numbers of its own."""

    def __init__(self, line):
        self.line, self.session, self.events = line, "", []
        targets = self("Target.getTargets")["targetInfos"]
        (self.page,) = [each["targetId"] for each in targets if each["type"] == "page"]
        self.session = self("Target.attachToTarget", targetId=self.page, flatten=True)["sessionId"]

    def send(self, method, number, **params):
        session = {"sessionId": self.session} if self.session else {}
        self.line.send(json.dumps({"id": number, "method": method, "params": params, **session}))

    def __call__(self, method, **params):
        self.send(method, 7, **params)
        while (answer := json.loads(self.line.recv(timeout=20))).get("id") != 7:
            self.events.append(answer["method"])
        return answer["result"]

    def crash(self):
        """Crash the page, and wait until it has."""
        self("Inspector.enable")
        self.send("Page.crash", 1)
        while json.loads(self.line.recv(timeout=20)).get("method") != "Inspector.targetCrashed":
            pass

    def value(self, expression):
        return self("Runtime.evaluate", expression=expression, returnByValue=True)["result"]["value"]

    def click(self, x, y):
        for kind in ("mousePressed", "mouseReleased"):
            self("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)


@pytest.fixture
def env():
    with closing(MiniWobEnv()) as made:
        made.reset(TASK)
        yield made


def test_what_is_done_by_devtools_is_judged_by_the_page_and_the_next_episode_is_as_always(env):
    for press, worth in ((True, 1.0), (False, 0.0)):
        first = env.reset(TASK)
        with connect(env.devtools()) as line:
            client = Client(line)
            client("Page.enable")
            if press:
                client.click(*client.value(CENTRE))
            assert client.value("WOB_DONE_GLOBAL") is press
        assert env.evaluate() == worth
    assert env.reset(TASK) == first


def test_time_goes_on_in_the_browser_and_a_program_may_connect_again(env):
    address, times = env.devtools(), []
    for _ in range(2):
        with connect(address) as line:
            client = Client(line)
            began = client.value("Date.now()")
            wait_until(lambda client=client, began=began: client.value("Date.now()") > began)
            times.append(began)
    assert times[0] < times[1]


def test_a_browser_has_one_address_and_what_is_no_message_ends_its_connection_alone(env):
    address = env.devtools()
    for other in (address[:-1], address.rpartition("/")[0], address + "0"):
        with pytest.raises(InvalidStatus, match="404"):
            connect(other)
    for wrong in ("nothing", '{"id":1,"method":"\0"}', "[]", b"\xff"):
        with connect(address) as line:
            line.send(wrong)
            with pytest.raises(ConnectionClosed):
                line.recv(timeout=20)
    with connect(address) as line:
        assert Client(line).value("1 + 1") == 2
    assert env.evaluate() == 0.0


BREAKS = {
    "closes its browser": lambda client: setattr(client, "session", "") or client("Browser.close"),
    "closes its page": lambda client: client("Target.closeTarget", targetId=client.page),
    "leaves the page": lambda client: client("Page.navigate", url="about:blank"),
    "lies about its reward": lambda client: client.value("WOB_RAW_REWARD_GLOBAL = 'much'"),
    "crashes its page": Client.crash,
    "hangs its page": lambda client: client.send("Runtime.evaluate", 1, expression="for (;;);"),
}


@pytest.mark.parametrize(
    "breaks",
    [pytest.param(way, marks=pytest.mark.long if way.startswith(("closes", "leaves")) else ()) for way in BREAKS],
)
def test_a_program_that_breaks_its_browser_is_judged_to_have_failed_and_harms_no_other_episode(breaks):
    with closing(MiniWobEnv(step_timeout_s=3.0)) as env:
        env.reset(TASK)
        with connect(env.devtools()) as line:
            client = Client(line)
            BREAKS[breaks](client)
            if breaks != "closes its browser":  # what is said later has passed on what was said before
                client.session = ""
                client("Browser.getVersion")
            with pytest.raises(BlamedError, match="the agent's browser does not answer"):
                env.evaluate()
        env.reset(TASK)
        for action in env.solve():
            env.step(action)
        assert env.evaluate() == 1.0


def test_nothing_is_left_of_a_browser_when_its_episode_ends(env):
    address = env.devtools()
    browser = psutil.Process(env.browser_pid)
    env.reset(TASK)
    wait_until(lambda: not browser.is_running() or browser.status() == psutil.STATUS_ZOMBIE)
    with pytest.raises(OSError, match="refused"):
        connect(address)
