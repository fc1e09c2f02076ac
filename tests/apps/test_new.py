"""A package of one's own: it is found, tests itself, trains, and each clause that its environment breaks is named."""

import os
import subprocess
import sys
from types import ModuleType

import pytest

from arpo.__main__ import main
from arpo.apps.new import write
from arpo.envs.contract import ContractError, check_env
from arpo.errors import ConfigError
from arpo.host.environment import set_up_process
from arpo.rollout.harness import Function
from arpo.run.choices import ROOT


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    """A folder that holds an environment and a method."""
    folder = tmp_path_factory.mktemp("a package")
    assert main(["new", "env", "kiosk", "--to", str(folder)]) == 0
    assert main(["new", "method", "halves", "--to", str(folder)]) == 0
    return folder


def checked(folder, place="desktop.py", line="", instead=""):
    """Check the written environment, with one line of a file in another form."""
    names = {}
    for file in ("tasks.py", "desktop.py"):
        text = (folder / "kiosk" / file).read_text("utf-8")
        if file == place and line:
            assert text.count(line) == 1, line
            text = text.replace(line, instead)
        module = ModuleType(file)
        exec(compile(text, file, "exec"), module.__dict__)
        names |= vars(module)
    for task in names["kiosk_tasks"](3):
        check_env(names["Kiosk"](), task)


def test_the_written_environment_keeps_the_contract(package):
    checked(package)


STEP, RUNNING, REWARD = 'left, top = self._running("step")', "if self._square is None:", "return float(self._clicked)"
BROKEN = {
    "another size than the picture's": (
        "self._width, self._height)\n",
        "self._width + 1, self._height)\n",
        "reset: a screenshot is 112x84, the observation says 113x84",
    ),
    "no PNG": ('format="PNG"', 'format="JPEG"', "must be a PNG"),
    "a screen that grows": (STEP, f"{STEP}; self._width += 8", r"step\(Wait\(.*\)\) changed the screen size"),
    "a reward above 1": (REWARD, "return 2.0", r"evaluate gives 2\.0, not a float in \[0, 1\]"),
    "a reward that is no number": (REWARD, "return self._clicked", r"evaluate gives False, not a float in \[0, 1\]"),
    "another screen for the same seed": ('Random(task.config["seed"])', "Random()", "another first observation"),
    "a step before a reset": (RUNNING, "if self._closed:", "before reset does not raise EnvError, but TypeError"),
    "a verdict before the reset": (
        '        self._running("evaluate")',
        "        pass",
        "evaluate before reset does not raise EnvError",
    ),
    "a step after the end": ("        self._square = None\n", "", "step after close does not raise EnvError"),
    "a reset after the end": ("if self._closed:", "if False:", "reset after close does not raise EnvError"),
    "a second close that opens it": ("= True\n\n", "= not self._closed\n\n", "reset after close does not raise"),
    "an action that is refused": ("pass  #", "raise ValueError(1)  #", "Finished.* raises ValueError: 1; every"),
    "a solution of nothing": ("yield Click(left", "yield Click(-left", r"solve\(\) ends with reward 0\.0"),
    "a forgotten instruction": ('"click the square"', '""', "reset gives no instruction, and the task has none"),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_a_line_that_breaks_a_clause_is_found_and_the_clause_named(package, name):
    line, instead, said = BROKEN[name]
    with pytest.raises(ContractError, match=said):
        checked(package, "tasks.py" if "square" in line and '"' in line else "desktop.py", line, instead)


@pytest.mark.parametrize(
    ("kind", "name", "said"),
    [
        ("env", "Kiosk", "'Kiosk' cannot be the name of a module: take lower-case letters"),
        ("env", "class", "'class' cannot be the name of a module"),
        ("env", "json", "json is the name of a module that is there already"),
        ("env", "null", "'null' cannot be the name of a module"),
        ("env", "phone", "experiment=warmstart_phone is a choice that is there already"),
        ("env", "miniwob_8", "tasks=miniwob_8 is a choice that is there already"),
        ("method", "gigpo", "method=gigpo is a choice that is there already"),
        ("env", "kiosk", "tests/test_kiosk.py exists: take another name, or another folder with --to"),
    ],
)
def test_a_name_that_is_taken_is_refused_and_nothing_is_written(tmp_path, kind, name, said):
    taken = tmp_path / "tests" / "test_kiosk.py"
    taken.parent.mkdir()
    taken.write_text("mine", "utf-8")
    with pytest.raises(ConfigError, match=said):
        write(kind, name, tmp_path)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [taken]
    assert taken.read_text("utf-8") == "mine"


def test_the_folder_of_this_code_is_no_place_for_a_package():
    with pytest.raises(ConfigError, match="outside of this code: name another folder with --to"):
        write("env", "kiosk", ROOT)
    assert not (ROOT / "pytest.ini").exists()


def outcome(folder, *words):
    """What a program says that starts in the folder of a package, which finds all of it there."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run([sys.executable, *words], cwd=folder, env=environment, capture_output=True, check=False)
    return done.returncode, (done.stdout + done.stderr).decode()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "passed"),
    [("tests/test_kiosk.py -k contract", "4 passed"), pytest.param("", "10 passed", marks=pytest.mark.long)],
)
def test_a_package_tests_itself(package, words, passed):
    code, said = outcome(package, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", *words.split())
    assert code == 0, said
    assert passed in said


def test_the_experiment_of_a_package_composes_in_its_folder(package):
    code, said = outcome(package, str(ROOT / "train.py"), "experiment=kiosk", "rollout.settings.group_size=0")
    assert code == 2
    assert "group_size=0 should be at least 1" in said


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_a_package_trains_from_its_own_warm_start_by_its_own_method(package):
    words = ["experiment=kiosk", "method=halves", "iterations=2", "engine=hf"]
    code, said = outcome(package, str(ROOT / "train.py"), *words)
    assert code == 0, said
    (run,) = (package / "outputs" / "kiosk").iterdir()
    assert len((run / "metrics.jsonl").read_text("utf-8").splitlines()) == 3
    assert "halves.method.Halves" in (run / "config.yaml").read_text("utf-8")


AGENT = "async def play(assignment): ...\n"


def find(folder, path):
    """Find the coroutine of a module as a program that lies elsewhere does, for workers by this PYTHONPATH."""
    os.chdir(folder)
    os.environ.pop("PYTHONPATH", None)
    sys.path.pop(0)
    set_up_process()
    assert Function(function="an_agent.play").function == "an_agent.play"
    assert os.environ.get("PYTHONPATH") == path


@pytest.mark.slow
def test_a_coroutine_is_found_in_the_folder_that_a_run_starts_in_and_by_workers_in_that_of_a_package(tmp_path, forks):
    (tmp_path / "an_agent.py").write_text(AGENT, "utf-8")
    forks.call(find, tmp_path, None)
    (tmp_path / "conf").mkdir()
    forks.call(find, tmp_path, str(tmp_path))
    (tmp_path / "queue.py").touch()  # would hide Python's own from all programs that workers are
    forks.call(find, tmp_path, None)
    with pytest.raises(AssertionError, match="start in the folder of its module, or let PYTHONPATH name that"):
        forks.call(find, tmp_path / "conf", None)
