"""The numbers of a request from what came of its task: how many episodes, and how many steps at most."""

from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated

from pydantic import Field

from arpo.bounds import AtLeastOne, NotNegativeInt, PositiveShare, checked
from arpo.rollout.sampler import TaskRecord
from arpo.types import Task


def rollout_number(success_rate: Fraction, group_size: int) -> int:
    """Return the number of episodes that a task with a success rate needs (DART, arXiv 2509.23866, section 3.3).

    N = floor((G + 1) / SR - (G - 1)), at most G: 2 where every episode succeeds. For G = 8 it is the formula of the
    paper's code, floor(9 / SR - 7), which falls below 8 from SR = 0.6 on. The success rate is a fraction, because a
    rounded quotient may lie below the whole number that it is.
    """
    return min(group_size, (group_size + 1) // success_rate - (group_size - 1))


@checked
@dataclass(frozen=True, slots=True)
class DynamicRolloutNumber:
    """Fewer episodes of a task that is nearly solved (DART, arXiv 2509.23866, section 3.3).

    Args:
        group_size: Episodes of a task whose success rate lies below the threshold, or is not known yet.
        threshold: The success rate from which on there are fewer: 0.6 in the paper, 1.0 in its code.
    """

    group_size: Annotated[int, Field(ge=2)]
    threshold: PositiveShare = 0.6

    def __call__(self, task: Task, record: TaskRecord) -> int:
        """Return the number of episodes of the next group."""
        if not record.successes:
            return self.group_size
        success_rate = Fraction(sum(record.successes), len(record.successes))
        if float(success_rate) < self.threshold:  # both rounded: 12 of 15 are 0.8, and lie below no threshold of 0.8
            return self.group_size
        return rollout_number(success_rate, self.group_size)


@checked
@dataclass(frozen=True, slots=True)
class DynamicTrajectoryLength:
    """No more steps than the longest success of the task took (DART, arXiv 2509.23866, section 3.4).

    Without slack a limit never rises again, because no longer episode can succeed.

    Args:
        limit: The run's step limit, where the task has none of its own: the most there can be.
        floor: The least limit, so that a success by a lucky first click does not end the task's other ways.
        slack: Steps more than the longest success took.
    """

    limit: AtLeastOne
    floor: AtLeastOne = 3
    slack: NotNegativeInt = 0

    def __call__(self, task: Task, record: TaskRecord) -> int | None:
        """Return the step limit of the next group; None as long as the task was never solved."""
        if record.longest_success is None:
            return None
        return min(task.max_steps or self.limit, max(self.floor, record.longest_success + self.slack))
