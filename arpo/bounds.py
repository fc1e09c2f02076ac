"""Bounds of arguments as types, and the decorator that checks them when an object is built."""

import inspect
from collections.abc import Callable, Mapping
from functools import cache, wraps
from typing import Annotated, Any, Literal, TypeVar, cast, get_args, get_origin

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from arpo.errors import ConfigError

AtLeastOne = Annotated[int, Field(ge=1)]
NotNegativeInt = Annotated[int, Field(ge=0)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1)]
PositiveShare = Annotated[float, Field(gt=0, le=1)]
Threshold = Annotated[float, Field(ge=0, lt=1)]
"""A bound of rewards, which are in [0, 1]: some reward can be above it."""

Target = TypeVar("Target", bound=Callable[..., Any])

_BROKEN = {
    "greater_than_equal": "be at least {ge:g}",
    "greater_than": "be above {gt:g}",
    "less_than_equal": "be at most {le:g}",
    "less_than": "be below {lt:g}",
}


def checked(target: Target) -> Target:
    """Check the arguments of a function, or of a class's constructor, before its body runs: a `ConfigError` names one.

    Only annotations that hold a bound or a `Literal` are checked; values are passed on unchanged.
    """
    function: Callable[..., Any] = vars(target)["__init__"] if isinstance(target, type) else target
    signature = inspect.signature(function)

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            given = signature.bind(*args, **kwargs).arguments
        except TypeError:
            return function(*args, **kwargs)  # Python's own message names the function
        for name, adapter in _adapters(function).items():
            if name in given:
                _check(name, given[name], adapter)
        return function(*args, **kwargs)

    if isinstance(target, type):
        target.__init__ = call  # type: ignore[misc]
        return cast(Target, target)
    return cast(Target, call)


def requirement(problem: ErrorDetails) -> str:
    """Return the requirement on a value, as the end of a sentence, such as "be at least 1"."""
    text = _BROKEN.get(problem["type"])
    return (
        text.format(**problem["ctx"]) if text else problem["msg"].removeprefix("Input should ").partition(", got ")[0]
    )


def _check(name: str, value: object, adapter: TypeAdapter[Any]) -> None:
    try:
        adapter.validate_python(value)
    except ValidationError as error:
        wanted = " or ".join(dict.fromkeys(requirement(problem) for problem in error.errors()))
        raise ConfigError(f"{name} must {wanted}, got {value!r}") from None


@cache
def _adapters(function: Callable[..., Any]) -> Mapping[str, TypeAdapter[Any]]:
    config = ConfigDict(arbitrary_types_allowed=True)
    parameters = inspect.signature(function, eval_str=True).parameters
    bounded = {name: value.annotation for name, value in parameters.items() if _is_bounded(value.annotation)}
    return {name: TypeAdapter(annotation, config=config) for name, annotation in bounded.items()}


def _is_bounded(annotation: Any) -> bool:
    return get_origin(annotation) in (Annotated, Literal) or any(map(_is_bounded, get_args(annotation)))
