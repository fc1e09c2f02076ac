from unittest.mock import Mock

from arpo.host.threads import Signal
from arpo.rollout.flow.stream import GroupStream, RequestedGroup, ResumeState, Served
from arpo.rollout.sampler import TaskRequest
from arpo.rollout.settings import RolloutSettings
from arpo.types import Task


def test_groups_of_an_earlier_process_stand_in_a_checkpoint_before_the_first_of_them_is_played_again():
    asked = [RequestedGroup(number, TaskRequest(Task(f"task-{number}", ""))) for number in (4, 3)]
    course = ResumeState(iteration=1, policy_version=1, per_iteration=2, asked=asked)
    settings = RolloutSettings(group_size=2, max_steps=2, max_tokens=8, max_context=64)
    stream = GroupStream(Mock(), settings, course, Mock(), Served, Signal())
    assert [each.number for each in stream.asked()] == [3, 4]
