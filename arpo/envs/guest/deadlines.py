"""The deadlines of a desktop: one object, from the environment down to the request."""

from dataclasses import dataclass

from arpo.errors import check_at_least, check_positive


@dataclass(frozen=True, slots=True)
class Deadlines:
    """Seconds after which a desktop counts as broken, by what is waited for. The defaults are those of our own.

    They end before those of a pool, whose error could not say what was slow.
    """

    start_s: float = 30.0
    """A container, until its guest is healthy."""
    call_s: float = 5.0
    """A request that waits for nothing."""
    program_s: float = 15.0
    """A program of a task or a check, to its end."""
    open_s: float = 30.0
    """A file that its application opens."""
    window_s: float = 20.0
    """A window that is to come; 0 where the guest does not say which there are, and nobody waits."""

    def __post_init__(self) -> None:
        check_positive(start_s=self.start_s, call_s=self.call_s, program_s=self.program_s, open_s=self.open_s)
        check_at_least(0, window_s=self.window_s)


OURS = Deadlines()
