"""Python modules of an agent, run in a process of their own and seen from the judge's process through proxies.

The judge's process imports them through `ForeignModules`; the other one, which the agent's code may take over as it
likes, runs `serve`. Each question is one line of JSON, and so is each answer: a function of FUNCTIONS and what it
takes, and what it gave or raised. None, numbers, texts, bytes and tuples are copied; everything else stays where it
is, and is a `Foreign` for the other side. Nothing of an answer is executed or unpickled. A `Foreign` equals a plain
list, dict or set if a copy of it does, and no other plain value, whatever its `__eq__` says.

Nothing of ARPO is imported here.
"""

import base64
import builtins
import importlib
import json
import operator
import socket
import sys
import time
from collections.abc import Callable, Collection, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

DEADLINE_S, PATIENCE_S = 10.0, 15.0
"""For one question and its answer, and for all together."""
LONGEST_LINE, LONGEST_MESSAGE, MOST_NAMES = 1 << 20, 500, 2000
CONTAINERS: dict[str, type] = {"list": list, "dict": dict, "set": set}
FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{name: getattr(operator, name) for name in operator.__all__},
    **{each.__name__: each for each in (bool, delattr, dir, float, format, getattr, int, isinstance, iter, len, next)},
    **{each.__name__: each for each in (repr, setattr, str)},
    "call": lambda function, *arguments, **keywords: function(*arguments, **keywords),
    "import_module": importlib.import_module,
}
_PYTHONS = (each for each in vars(builtins).values() if isinstance(each, type))
ERRORS = {each.__name__: each for each in _PYTHONS if issubclass(each, Exception)}
NOT_TO_REPLACE = frozenset(vars(builtins)) | sys.stdlib_module_names
"""Names that `import *` does not bring: a test suite means Python's own."""
ASKED: tuple[str, ...] = ("delattr", "setattr", "getitem", "setitem", "delitem", "contains", "len", "bool", "dir")
ASKED += ("float", "int", "index", "repr", "str", "format", "next", "neg", "abs", "lt", "le", "gt", "ge")
ASKED_BOTH_WAYS = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow")
"""What Python asks of an object by `__name__`, and of one on the right side of an operator."""


class ForeignCodeError(Exception):
    """Raised when the agent's code gives no usable answer, and for exceptions of its own."""


class Foreign:
    """An object of the other process."""

    def __init__(self, ask: Callable[..., Any], number: int, kind: str) -> None:
        self.__dict__.update(_ask=ask, _number=number, _kind=kind)

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return CONTAINERS.get(self.__dict__["_kind"], Foreign)

    def __getattr__(self, name: str) -> Any:
        return self.__dict__["_ask"]("getattr", self, name)

    def __call__(self, /, *arguments: Any, **keywords: Any) -> Any:
        """Call it there."""
        return self.__dict__["_ask"]("call", self, *arguments, **keywords)

    def __iter__(self) -> Any:
        return self.__dict__["_ask"]("iter", self)

    def __eq__(self, other: object) -> bool:
        if type(other) is Foreign:
            return other is self or self.__dict__["_ask"]("eq", self, other) is True
        return type(other) is CONTAINERS.get(self.__dict__["_kind"]) and self.__dict__["_ask"]("copy", self) == other

    def __hash__(self) -> int:
        return hash(self.__dict__["_number"])

    def __instancecheck__(self, instance: object) -> bool:
        return type(instance) is Foreign and self.__dict__["_ask"]("isinstance", instance, self) is True


def _method(function: str, *, turned: bool = False) -> Callable[..., Any]:
    def method(self: Foreign, *arguments: Any) -> Any:
        operands = (*arguments, self) if turned else (self, *arguments)
        return self.__dict__["_ask"](function, *operands)

    return method


for _name in (*ASKED, *ASKED_BOTH_WAYS):
    type.__setattr__(Foreign, f"__{_name}__", _method(_name))
for _name in ASKED_BOTH_WAYS:
    type.__setattr__(Foreign, f"__r{_name}__", _method(_name, turned=True))


class _Wire:
    """One end of the connection: lines of JSON, and the objects that the other end has or wants."""

    def __init__(self, connection: socket.socket, deadline_s: float | None) -> None:
        self._connection, self._deadline_s = connection, deadline_s
        self._unread, self._patience_s = b"", PATIENCE_S if deadline_s else 1e9
        self.objects: list[Any] = []
        """Of this process that the other one has heard of."""
        self._foreign: dict[int, Foreign] = {}

    def ask(self, function: str, *arguments: Any, **keywords: Any) -> Any:
        """Return the result of a function of the other process, or raise `ForeignCodeError` if it gives none."""
        question = [function, self.packed(arguments), {name: self.packed(each) for name, each in keywords.items()}]
        try:
            self.send(question)
            what, answer = self.receive()
            if what == "gave":
                return self.unpacked(answer)
            name, message = str(answer[0]), str(answer[1])[:LONGEST_MESSAGE]
        except (OSError, ValueError, TypeError, LookupError, RecursionError) as error:
            self._connection.close()
            raise ForeignCodeError(f"the agent's code gave no answer: {type(error).__name__}: {error}") from None
        known = name in ERRORS and (name != "StopIteration" or function == "next")  # else it would end a loop early
        raise ERRORS[name](message) if known else ForeignCodeError(f"{name}: {message}")

    def send(self, message: Any) -> None:
        """Send a line."""
        self._connection.settimeout(self._deadline_s)
        self._connection.sendall(json.dumps(message).encode() + b"\n")

    def receive(self) -> Any:
        """Return the next line."""
        began = time.monotonic()
        deadline = began + min(self._deadline_s or 1e9, self._patience_s)
        while b"\n" not in self._unread:
            self._connection.settimeout(max(0.001, deadline - time.monotonic()))
            if not (chunk := self._connection.recv(1 << 16)) or len(self._unread) > LONGEST_LINE:
                raise OSError("the line does not end")
            self._unread += chunk
        line, _, self._unread = self._unread.partition(b"\n")
        self._patience_s -= time.monotonic() - began if self._deadline_s else 0.0
        return json.loads(line)

    def packed(self, value: Any, *, whole: bool = False) -> Any:
        """Return a value for JSON: a copy, or a reference; of the agent's containers a copy only if `whole`."""
        kind, asks = type(value), self._deadline_s is not None
        if value is None:
            return None
        for plain in (bool, int, float, str):
            if isinstance(value, plain):
                return plain(value)
        if kind is Foreign:
            return {"theirs": value.__dict__["_number"]}
        if kind is bytes:
            return {"bytes": base64.b64encode(value).decode()}
        if kind in (tuple, slice) or (kind in CONTAINERS.values() and (whole or asks)):
            parts = value.items() if kind is dict else value
            if kind is slice:
                parts = (value.start, value.stop, value.step)
            return {kind.__name__: [self.packed(each, whole=whole) for each in parts]}
        if asks:
            raise TypeError(f"a {kind.__name__} cannot be handed to the agent's code")
        self.objects.append(value)
        return {"mine": len(self.objects) - 1, "kind": kind.__name__ if kind in CONTAINERS.values() else ""}

    def unpacked(self, value: Any) -> Any:
        """Return the value that was packed."""
        if not isinstance(value, dict):
            return value
        if "mine" in value:
            number, kind = int(value["mine"]), str(value.get("kind"))
            return self._foreign.setdefault(number, Foreign(self.ask, number, kind))
        if "theirs" in value:
            return self.objects[value["theirs"]]
        ((kind, content),) = value.items()
        if kind == "bytes":
            return base64.b64decode(content)
        if kind == "slice":
            return slice(*content)
        return {**CONTAINERS, "tuple": tuple}[kind](map(self.unpacked, content))


class ForeignModule(ModuleType):
    """A module of the other process, whose attributes are read and written there each time."""

    def __getattribute__(self, name: str) -> Any:
        own = super().__getattribute__("__dict__")
        if name == "__all__":
            names = [each for each in list(dir(own["__there__"]))[:MOST_NAMES] if not each.startswith("_")]
            return [each for each in names if type(each) is str and each not in NOT_TO_REPLACE]
        return super().__getattribute__(name) if name.startswith("__") else getattr(own["__there__"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("__") or type(value) is ForeignModule:  # of a package, which has it there too
            super().__setattr__(name, value)
        else:
            self.__dict__["__there__"].__setattr__(name, value)


class ForeignModules(MetaPathFinder, Loader):
    """A finder of the modules in a directory, but for trusted ones, which the process that runs `serve` imports."""

    def __init__(self, directory: str, trusted: Collection[str], connection: socket.socket) -> None:
        self._directory, self._trusted = Path(directory), frozenset(trusted)
        self._wire = _Wire(connection, DEADLINE_S)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return a spec for a module of the agent's."""
        top, place = fullname.partition(".")[0], self._directory.joinpath(*fullname.split("."))
        if top in self._trusted or not (place.is_dir() or place.with_suffix(".py").exists()):
            return None
        return ModuleSpec(fullname, self, is_package=place.is_dir())

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return a module that knows nothing yet."""
        return ForeignModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Let the other process import the module."""
        module.__dict__["__there__"] = self._wire.ask("import_module", module.__name__)


def serve(connection: socket.socket, directory: str) -> None:
    """Import the agent's modules, and answer questions about them until the connection ends."""
    sys.path.insert(0, directory)
    wire = _Wire(connection, None)
    while True:
        wire.send(_answer(wire, *wire.receive()))


def _answer(wire: _Wire, function: str, arguments: Any, keywords: Any) -> list[Any]:
    try:
        values, named = wire.unpacked(arguments), {name: wire.unpacked(each) for name, each in keywords.items()}
        if function == "copy":
            return ["gave", wire.packed(*values, whole=True)]
        return ["gave", wire.packed(FUNCTIONS[function](*values, **named))]
    except BaseException as error:  # noqa: BLE001 - an agent's code may raise anything
        return ["raised", [type(error).__name__, str(error)[:LONGEST_MESSAGE]]]


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])), sys.argv[2])
