"""A clock that jumps: seconds of waiting pass at once where nothing but the event loop waits."""

import asyncio
import selectors


class JumpingSelector(selectors.DefaultSelector):
    """Adds up the seconds that it is asked to wait, and does not wait."""

    def __init__(self):
        super().__init__()
        self.seconds = 0.0

    def select(self, timeout=None):
        ready = super().select(timeout and 0)
        if not ready and timeout:
            self.seconds += timeout
        return ready


class JumpingLoop(asyncio.SelectorEventLoop):
    """An event loop whose time begins at 0 and costs none."""

    def __init__(self):
        self._selector_of_ours = JumpingSelector()
        super().__init__(self._selector_of_ours)
        self._clock_resolution = 1e-6

    def time(self):
        return self._selector_of_ours.seconds


def run(coroutine):
    with asyncio.Runner(loop_factory=JumpingLoop) as runner:
        return runner.run(coroutine)
