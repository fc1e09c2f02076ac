"""Deadlines inside an environment end before those of the pool, whose error cannot say what was slow."""

from inspect import signature

import pytest

from arpo.agent.pyautogui import LONGEST_TYPING_S
from arpo.envs.desktop.env import DockerDesktop
from arpo.envs.guest.client import OURS
from arpo.envs.osworld import env as osworld
from arpo.host.containers import API_TIMEOUT_S
from tests.composed import composed

SERVER_LIMIT_S = 120  # after which OSWorld's server in the guest ends a program


def test_osworld_s_deadlines_end_before_the_pool_s():
    pool = composed("env=osworld").env
    env, theirs = pool.make_env, osworld.DEADLINES
    # the last look at a booting machine may begin just before its deadline
    start_s = env.boot_timeout_s + theirs.call_s
    assert start_s + theirs.call_s + theirs.open_s + theirs.call_s < pool.reset_timeout_s
    typing_s = theirs.call_s + LONGEST_TYPING_S
    assert typing_s < SERVER_LIMIT_S
    assert typing_s + env.pause_s + theirs.call_s < pool.step_timeout_s
    assert theirs.program_s < SERVER_LIMIT_S
    assert theirs.program_s + env.grading_timeout_s < pool.evaluate_timeout_s


def test_our_desktops_deadlines_end_before_the_pool_s():
    pool = composed("env=desktop").env
    start_s = max(signature(DockerDesktop).parameters["start_timeout_s"].default, API_TIMEOUT_S)
    assert start_s + OURS.open_s + OURS.window_s + OURS.call_s < pool.reset_timeout_s
    slowest_s = max(OURS.open_s, OURS.program_s, OURS.window_s)
    assert slowest_s + OURS.call_s < min(pool.step_timeout_s, pool.evaluate_timeout_s)


@pytest.mark.parametrize("env", ["osworld", "desktop"])
def test_in_a_cluster_both_kinds_of_desktops_go_where_an_engine_is(env):
    assert composed(f"env={env}").env.backend == {"_target_": "arpo.envs.pool.ray.RayBackend", "placement": "docker"}
