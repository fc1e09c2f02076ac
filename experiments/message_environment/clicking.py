"""A taskset of Verifiers as small as can be: an answer is worth 1 if it clicks."""

from collections.abc import Iterable

import verifiers.v1 as vf


class Click(vf.Task[vf.TaskData]):
    """One question, whose answer should click."""

    @vf.reward
    async def clicks(self, trace: vf.Trace) -> float:
        """Return whether the last answer clicks."""
        return float("click" in (trace.last_reply or ""))


class Clicking(vf.Taskset[Click, vf.TasksetConfig]):
    """A thousand questions."""

    def load(self) -> Iterable[Click]:
        """Yield them."""
        for number in range(1000):
            yield Click(vf.TaskData(prompt=f"Click on line {number}."), self.config.task)


__all__ = ["Clicking"]
