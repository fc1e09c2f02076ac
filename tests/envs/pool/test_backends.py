"""The pool of environments in real worker processes, really killed."""

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import threading
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from arpo.agent.actions import Click, Wait
from arpo.envs.fake import FakeDesktop, fake_tasks
from arpo.envs.pool.ray import RayBackend
from arpo.errors import ConfigError, EnvError
from arpo.host.processes import LABEL_VARIABLE
from arpo.host.session import Session
from tests.envs.pool.support import HANG, TASK, fail, faulty_desktop, make_pool, solve, until, with_pool
from tests.host.watchdogs import wait_until

pytestmark = pytest.mark.ray
with_ray = pytest.mark.usefixtures("ray_session")

REPOSITORY = Path(__file__).parents[3]


def short_root():
    """A directory for sessions with Ray: `tmp_path` is too long for sockets."""
    return Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))


@pytest.fixture(scope="module")
def ray_session(tmp_path_factory):
    """A session with one Ray for all tests here: it takes seconds to start."""
    tmp_path_factory.getbasetemp()  # not in the session, which ends before other tests want theirs
    root = short_root()
    with Session.start(root) as session:
        backend = RayBackend()
        asyncio.run(backend.open())
        yield session
        asyncio.run(backend.close())
    root.rmdir()


def running(marked):
    """Living processes of which this holds."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.status() != psutil.STATUS_ZOMBIE and marked(process):
                found.append(process)
    return found


def has_label(process, label):
    return process.environ().get(LABEL_VARIABLE) == label


def workers():
    """The worker processes of pools that run under this session."""
    label = os.environ[LABEL_VARIABLE]
    return running(lambda process: process.name().startswith("ray::EnvWorker") and has_label(process, label))


def desktop_with_browser():
    """A desktop that starts another process, as a browser is one."""
    desktop = FakeDesktop()
    subprocess.Popen(["sleep", "300"], start_new_session=True)  # browser drivers do so too
    return desktop


@with_ray
def test_worker_processes_serve_many_episodes_stay_thin_and_end_with_their_pool():
    async def scenario(pool):
        rewards = await asyncio.gather(*(solve(pool, task) for task in fake_tasks(24)))
        return rewards, [worker.memory_info().rss for worker in workers()]

    rewards, memory = with_pool(make_pool(size=8, envs_per_worker=4, backend="ray"), scenario)
    assert rewards == [1.0] * 24
    assert len(memory) == 2
    assert max(memory) < 150 * 2**20  # 95 MB measured; with torch it is more than 300
    wait_until(lambda: not workers(), 10)


@with_ray
def test_a_worker_that_is_killed_is_a_crash_and_its_browser_goes_too():
    async def scenario(pool):
        async with pool.lease(TASK) as env:
            await env.reset(TASK)
            (worker,) = workers()
            (browser,) = worker.children()
            worker.send_signal(signal.SIGKILL)
            with pytest.raises(EnvError) as caught:
                await env.step(Wait())
        return caught.value.kind, await solve(pool), browser, pool.counters()

    kind, reward, browser, counters = with_pool(make_pool(desktop_with_browser, backend="ray"), scenario)
    assert (kind, reward) == ("crash", 1.0)
    assert counters["env/fault_crash"] == counters["env/restarts"] == 1
    assert not browser.is_running() or browser.status() == psutil.STATUS_ZOMBIE


@with_ray
def test_a_hang_in_a_shared_worker_leaves_its_process_and_its_neighbour_alone(tmp_path):
    hanging, healthy = fake_tasks(2, kinds=("click",))

    async def scenario(pool):
        before = [worker.pid for worker in workers()]
        async with pool.lease(healthy) as neighbour:
            await neighbour.reset(healthy)
            error = await fail(pool, hanging)
            states = pool.states()
            await until(lambda: pool.states()["idle"] == 1)  # while the neighbour is in the middle of its episode
            await neighbour.step(Click(0, 0))
            reward = await neighbour.evaluate()
        assert (states["busy"], states["restarting"], states["idle"]) == (1, 1, 0)
        assert reward == 0.0  # it ended in its own way: with a click on the background
        return error.kind, await solve(pool, hanging), before, [worker.pid for worker in workers()]

    (tmp_path / healthy.id.replace("/", "_")).write_bytes(b".")  # its first attempt, which would hang, is behind it
    make_env = faulty_desktop(HANG, ledger=tmp_path)
    pool = make_pool(make_env, size=2, envs_per_worker=2, backend="ray", step_timeout_s=4.0)
    kind, reward, before, after = with_pool(pool, scenario)
    assert (kind, reward) == ("timeout", 1.0)
    assert len(before) == 1
    assert before == after
    assert pool.counters()["env/restarts"] == 1
    assert sum(value for name, value in pool.counters().items() if "fault" in name) == 1


@with_ray
def test_an_environment_that_cannot_travel_is_a_configuration_error():
    lock = threading.Lock()
    with pytest.raises(ConfigError, match="picklable"):
        asyncio.run(make_pool(lambda: FakeDesktop(lock), backend="ray").start())


DRIVER = """
import asyncio, sys
from pathlib import Path
from arpo.envs.fake import FakeDesktop
from arpo.envs.pool.pool import EnvPool
from arpo.host.session import Session

async def main():
    pool = EnvPool(FakeDesktop, size=2)
    await pool.start()
    print(session.label, flush=True)
    await asyncio.sleep(120)

session = Session.start(Path(sys.argv[1]))
asyncio.run(main())
"""
GUEST = """
import asyncio, sys
from pathlib import Path
import ray
from arpo.envs.pool.ray import RayBackend
from arpo.envs.fake import FakeDesktop
from arpo.envs.pool.pool import EnvPool
from arpo.host.session import Session

async def main():
    pool = EnvPool(FakeDesktop, size=3, envs_per_worker=2, backend=RayBackend(placement="docker"))
    await pool.start()
    left = ray.available_resources()["docker:10.0.0.2"]
    await pool.close()
    backend = RayBackend(placement="docker")
    await backend.open()
    for _ in range(2):
        worker = await backend.launch(FakeDesktop, 4)
        await worker.kill()
    await backend.close()
    print(left, ray.is_initialized())

with Session.start(Path(sys.argv[1])) as session:
    directory = str(session.directory / "ray")
    ray.init(num_cpus=0, resources={"docker:10.0.0.2": 5}, include_dashboard=False, _temp_dir=directory)
    asyncio.run(main())
    ray.shutdown()
"""


def start(program, root, **options):
    """Start a program that has its sessions in this directory."""
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    command = [sys.executable, "-c", program, str(root)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, text=True, **options)


@pytest.mark.long
def test_in_a_ray_that_runs_already_workers_take_their_resources_give_them_back_and_leave_it_running():
    root = short_root()
    answer, _ = start(GUEST, root, stderr=subprocess.DEVNULL).communicate()
    assert answer.split() == ["2.0", "True"]  # room for 5 environments, and 3 are there
    root.rmdir()


def of_session(label, root):
    """Processes that carry the label or write below the directory."""

    def marked(process):
        written = (file.path for file in process.open_files() if file.mode != "r")
        return has_label(process, label) or any(path.startswith(str(root)) for path in written)

    return running(marked)


def test_no_process_of_a_run_with_ray_is_left_by_a_kill(tmp_path):
    root, log = short_root(), tmp_path / "log"
    with log.open("wb") as errors:
        driver = start(DRIVER, root, stderr=errors)
    label = driver.stdout.readline().strip()
    assert label, log.read_text()
    assert len(of_session(label, root)) >= 4  # among them the scheduler, its agents and two workers
    driver.kill()
    driver.communicate(timeout=150)
    wait_until(lambda: not of_session(label, root) and not list(root.iterdir()), 60)  # without another start
    root.rmdir()
