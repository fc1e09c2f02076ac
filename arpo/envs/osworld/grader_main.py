"""A judge of tasks with OSWorld's own code; it runs in a cell, in the second environment, where `desktop-env` is.

`arpo/host/cell_main.py` calls `prepare`, and then `judge` in a process that is ended after it. A request and a reply:

    {"guest": {"host": "127.0.0.1", "server_port": 5000, "chromium_port": 9222, "vlc_port": 8080}, "evaluator": {…}}
    {"score": 1.0}   or   {"error": "result", "message": "…"}

`error` says what failed: `result` (to fetch or to judge what the agent has made), `guest` (no answer from it), `slow`
(this machine was too busy for one), `package` (one that is not installed), `request`.

    python3 -I grader_main.py    {"functions": {"exact_match": null}, "getters": {…}}, by name what each lacks

Nothing of ARPO is imported here, and ARPO imports nothing of this.
"""

import ast
import functools
import importlib
import importlib.util
import io
import json
import os
import sys
import tarfile
import tempfile
import traceback
import wave
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import urlsplit

ABSENT = ("acoustid", "borb", "easyocr", "pydrive")
"""Packages that desktop-env imports and that are left out: each is unused, or of a task that is not supported."""

HTTP_TIMEOUT_S = 25.0
"""Of a request of OSWorld's code that names none; it would wait for ever."""
RETRY_S = 0.5
"""Between attempts to read from the guest; OSWorld's 5 s add up when a file is simply not there."""

SLOW = 503
"""The status by which a guest of ours says that a program has not had its chance; OSWorld's says no such thing."""
COMPARES_PAGES = "compare_htmls"
"""The metric that compares two pages as far as the shorter one goes, and finds an empty one right."""
AGENT_MODULES = Path(__file__).with_name("agent_modules.py")
RUNS_CODE, HEARS = "check_python_file_by_test_suite", "compare_audios"
"""The metric that imports what the agent has written, and the one whose libraries compile themselves at first use."""


class AbsentPackageError(BaseException):
    """Raised when OSWorld's code uses a package of ABSENT; its metric functions turn every `Exception` into a 0."""


class MissingAttribute:
    """An attribute of an absent package."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise AbsentPackageError(self._name)

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """Refuse."""
        raise AbsentPackageError(self._name)


class AbsentModule(ModuleType):
    """A module that can be imported, and whose things cannot be used."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return MissingAttribute(f"{self.__name__}.{name}")


class AbsentPackages(MetaPathFinder, Loader):
    """A finder of the packages of ABSENT that nothing else finds."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return a spec for an absent package."""
        if fullname.partition(".")[0] not in ABSENT:
            return None
        return ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return a module with nothing in it."""
        return AbsentModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing."""


class Evaluators:
    """OSWorld's metric functions or getters, each module imported when one of its functions is first used.

    The package's own `__init__` would import all of them, and with them torch; it only says which is where.
    """

    def __init__(self, kind: str, prefix: str = "") -> None:
        spec = importlib.util.find_spec("desktop_env")
        if spec is None or spec.origin is None:
            raise ImportError("desktop-env is not installed here; `make osworld` installs it")
        directory = Path(spec.origin).parent / "evaluators" / kind
        self.package = f"desktop_env.evaluators.{kind}"
        self._prefix = prefix
        source = ast.parse((directory / "__init__.py").read_text(encoding="utf-8")).body
        imports = (node for node in source if isinstance(node, ast.ImportFrom))
        self._modules = {alias.name: node.module or "" for node in imports for alias in node.names}
        package = ModuleType(self.package)
        package.__path__ = [str(directory)]
        sys.modules[self.package] = package

    def __getitem__(self, name: str) -> Callable[..., Any]:
        """Return a function by the name that task files have for it."""
        module = importlib.import_module(f"{self.package}.{self._modules[self._prefix + name]}")
        return getattr(module, self._prefix + name)  # type: ignore[no-any-return]

    def names(self) -> list[str]:
        """Return every name that a task file may use."""
        return sorted(name.removeprefix(self._prefix) for name in self._modules)


class StandIn:
    """A stand-in for OSWorld's `DesktopEnv`: the machine under test, with the attributes that getters read."""

    current_use_proxy = False

    def __init__(self, address: Mapping[str, Any], directory: str) -> None:
        self.vm_ip: str = address["host"]
        self.server_port: int = address["server_port"]
        self.chromium_port: int = address["chromium_port"]
        self.vlc_port: int = address["vlc_port"]
        self.secret: str = address.get("secret", "")
        self.cache_dir = directory
        controllers = importlib.import_module("desktop_env.controllers.python")
        self.controller = controllers.PythonController(vm_ip=self.vm_ip, server_port=self.server_port)
        self.controller.retry_interval = RETRY_S

    @property
    def vm_platform(self) -> Any:
        """The operating system that runs there, such as `Linux`."""
        return self.controller.get_vm_platform()


class LostRequests:
    """Requests that a guest did not answer, or was too slow for: OSWorld takes both for a missing file."""

    _guest: StandIn
    seen: list[str]
    slow: list[str]

    def watch(self, guest: StandIn) -> None:
        """Begin with a guest."""
        self._guest = guest
        self.seen, self.slow = [], []

    def install(self) -> None:
        """Look at every request of this process, give a deadline to those without, and the guest its secret."""
        session = importlib.import_module("requests").Session
        original = session.request

        @functools.wraps(original)
        def request(this: Any, method: str, url: str, **keywords: Any) -> Any:
            keywords["timeout"] = keywords.get("timeout") or HTTP_TIMEOUT_S
            port = urlsplit(url).port
            if self._guest.secret and port == self._guest.server_port:
                secret = {"Authorization": f"Bearer {self._guest.secret}"}
                keywords["headers"] = {**(keywords.get("headers") or {}), **secret}
            try:
                response = original(this, method, url, **keywords)
            except OSError as error:  # of which every exception of requests is one
                if self._guest.server_port != port == self._guest.vlc_port and self._guest.controller.get_screenshot():
                    raise FileNotFoundError(f"VLC was closed: {error}") from error  # by the agent: no result, a 0
                if port in (self._guest.server_port, self._guest.vlc_port):
                    self.seen.append(f"{method} {url}: {type(error).__name__}: {error}")
                raise
            if response.status_code == SLOW and port == self._guest.server_port:
                self.slow.append(f"{method} {url}: {response.text[:500]}")
            return response

        session.request = request


class GraderError(Exception):
    """Raised when there is no score; the reply calls its kind `error`."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class Grader:
    """OSWorld's metric functions and getters, applied to one task."""

    def __init__(self) -> None:
        sys.meta_path.append(AbsentPackages())
        tarfile.TarFile.extraction_filter = staticmethod(tarfile.data_filter)
        self.metrics = Evaluators("metrics")
        self.getters = Evaluators("getters", prefix="get_")
        self._lost = LostRequests()
        self._lost.install()

    def prepare(self, evaluator: Mapping[str, Any]) -> None:
        """Import all that a task needs, or raise `GraderError`."""
        wanted = [(self.metrics, name) for name in _as_list(evaluator["func"])]
        configs = [*_as_list(evaluator.get("result")), *_as_list(evaluator.get("expected"))]
        wanted += [(self.getters, config["type"]) for config in configs if config]
        for functions, name in wanted:
            try:
                functions[name]
            except KeyError as error:
                raise GraderError("request", f"OSWorld has no function {error}") from error
        if (module := sys.modules.get(f"{self.metrics.package}.basic_os")) is not None:
            module.__dict__["eval"] = ast.literal_eval  # of a list that a program has printed

    def answer(self, request: Mapping[str, Any], directory: str) -> dict[str, Any]:
        """Return the reply to one request."""
        guest = StandIn(request["guest"], directory)
        self._lost.watch(guest)
        try:
            self.prepare(request["evaluator"])
            score = self._grade(guest, request["evaluator"])
        except AbsentPackageError as error:
            return {"error": "package", "message": f"{error} is not installed in the environment of the graders"}
        except GraderError as error:
            return self._fault() or {"error": error.kind, "message": str(error)}
        return self._fault() or {"score": score}

    def _fault(self) -> dict[str, Any] | None:
        """Return the error that a lost guest is, whatever OSWorld's code made of it."""
        for kind, lost in (("guest", self._lost.seen), ("slow", self._lost.slow)):
            if lost:
                return {"error": kind, "message": lost[-1]}
        return None

    def _grade(self, guest: StandIn, evaluator: Mapping[str, Any]) -> float:
        """Return the score of OSWorld's `DesktopEnv.evaluate`, after its `postconfig` and its rules for `FAIL`."""
        names = evaluator["func"]
        parts = [evaluator.get(key) for key in ("result", "expected", "options")]
        if not isinstance(names, list):
            return self._compare(guest, names, *parts)
        conjunction = evaluator.get("conj", "and")
        scores = []
        for index, name in enumerate(names):
            score = self._compare(guest, name, *(part[index] if part else None for part in parts))
            if conjunction == "and" and score == 0.0:
                return 0.0
            if conjunction == "or" and score == 1.0:
                return 1.0
            scores.append(score)
        return sum(scores) / len(scores) if conjunction == "and" else max(scores)

    def _compare(self, guest: StandIn, name: str, result: Any, expected: Any, options: Any) -> float:
        """Return the score of one metric function; a result that is not there scores 0, as in OSWorld."""
        try:
            arguments = [self._get(guest, result)]
        except FileNotFoundError:
            return 0.0
        if expected:
            arguments.append(self._get(guest, expected))
        score = _call(name, self.metrics, *arguments, **(options or {}))
        if name == COMPARES_PAGES and score:
            soup = importlib.import_module("bs4").BeautifulSoup
            elements = {len(soup(Path(path).read_bytes(), "lxml").find_all()) for path in arguments}
            score = score if len(elements) == 1 else 0.0
        if not isinstance(score, int | float):
            raise GraderError("result", f"{name} gave {score!r:.200}, which is no score")
        return float(score)

    def _get(self, guest: StandIn, config: Mapping[str, Any]) -> Any:
        here = Path(guest.cache_dir, str(config.get("dest") or "."))
        if config["type"] == "pdf_from_url" and here.is_file():  # fetched before, for here is no web
            return str(here)
        return _call(config["type"], self.getters, guest, config)


def _call(name: str, functions: Evaluators, *arguments: Any, **options: Any) -> Any:
    try:
        return functions[name](*arguments, **options)
    except (FileNotFoundError, AbsentPackageError):
        raise
    except BaseException as error:  # OSWorld's code may raise anything, and code of an agent SystemExit
        where = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{Path(where.filename).name}, line {where.lineno}"
        raise GraderError("result", f"{name}: {type(error).__name__}: {error!s:.500} ({place})") from error


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _lacking(functions: Evaluators) -> dict[str, str | None]:
    """Return the reason why each function's module cannot be imported, None where it can."""
    found: dict[str, str | None] = dict.fromkeys(functions.names())
    for name in found:
        try:
            functions[name]
        except ImportError as error:
            found[name] = str(error)
    return found


@cache
def grader() -> Grader:
    """Return the one grader of this process."""
    return Grader()


def prepare(request: Mapping[str, Any]) -> str | None:
    """Import what a request needs; return the file that runs the agent's code, where a metric wants to import that."""
    evaluator = request["evaluator"]
    with suppress(GraderError, KeyError, TypeError):  # `judge` says it
        grader().prepare(evaluator)
    if HEARS in _as_list(evaluator.get("func")):
        _hear_once()
    return str(AGENT_MODULES) if RUNS_CODE in _as_list(evaluator.get("func")) else None


def judge(request: Mapping[str, Any], directory: str, foreign: Any) -> dict[str, Any]:
    """Return the reply to a request; `directory` has what a task is judged by, and gets what is fetched."""
    if RUNS_CODE in _as_list(request["evaluator"].get("func")):
        trusted = {Path(name).stem for name in os.listdir(directory)}
        sys.meta_path.insert(0, _agent_modules().ForeignModules(directory, trusted, foreign))
    try:
        return grader().answer(request, directory)
    except (KeyError, TypeError, IndexError) as error:
        return {"error": "request", "message": f"{type(error).__name__}: {error}"}


@cache
def _hear_once() -> None:
    """Compare a sound with itself; a process of one judgement would compile for ten seconds each time."""
    sound = io.BytesIO()
    with wave.open(sound, "wb") as file:
        file.setparams((1, 2, 22050, 0, "NONE", ""))
        file.writeframes(bytes(range(256)) * 400)
    descriptor = os.memfd_create("sound")
    os.write(descriptor, sound.getvalue())
    tempfile.tempdir = os.environ.get("NUMBA_CACHE_DIR")  # a judgement alone may write to TMPDIR
    grader().metrics[HEARS](*[f"/proc/self/fd/{descriptor}"] * 2)
    tempfile.tempdir = None
    os.close(descriptor)


@cache
def _agent_modules() -> ModuleType:
    spec = importlib.util.spec_from_file_location("agent_modules", AGENT_MODULES)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    json.dump({"functions": _lacking(grader().metrics), "getters": _lacking(grader().getters)}, sys.stdout)
