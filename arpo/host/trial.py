"""A trial of constructors: they check their arguments, and stop before they start or load anything."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_ON_TRIAL = ContextVar("on_trial", default=False)


class NotStarted(BaseException):
    """Raised by a constructor on trial that has found nothing wrong; no error, so that nothing catches it as one."""


def before_start() -> None:
    """Mark the line of a constructor after which something starts or is loaded; on trial, it ends there."""
    if _ON_TRIAL.get():
        raise NotStarted


@contextmanager
def on_trial() -> Iterator[None]:
    """Try constructors inside of the block, and leave it at the first one that would start something."""
    token = _ON_TRIAL.set(True)
    try:
        yield
    except NotStarted:
        pass
    finally:
        _ON_TRIAL.reset(token)
