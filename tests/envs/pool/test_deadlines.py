"""Deadlines inside an environment end before those of the pool, whose error cannot say what was slow."""

from inspect import signature

import pytest

from arpo.envs.desktop.env import WINDOWS_TIMEOUT_S, DockerDesktop
from arpo.envs.guest.client import CALL_TIMEOUT_S, LONGEST_EXECUTION_S, Guest
from arpo.envs.osworld import env as osworld
from arpo.host.containers import API_TIMEOUT_S
from tests.test_configs import compose

SERVER_LIMIT_S = 120
"""After which OSWorld's server in the guest ends a program."""


@pytest.fixture
def pool(request):
    return compose(f"env={request.param}").env


@pytest.mark.parametrize("pool", ["osworld"], indirect=True)
def test_osworld_s_deadlines_end_before_the_pool_s(pool):
    env, look_s = pool.make_env, osworld.CALL_TIMEOUT_S
    slowest_step_s = Guest("http://guest", timeout_s=look_s).patience_s
    # the last look at a booting machine may begin just before its deadline
    assert env.boot_timeout_s + look_s + look_s + slowest_step_s + look_s < pool.reset_timeout_s
    assert osworld.TYPING_TIMEOUT_S < SERVER_LIMIT_S
    assert osworld.TYPING_TIMEOUT_S + env.pause_s + look_s < pool.step_timeout_s
    assert LONGEST_EXECUTION_S < SERVER_LIMIT_S
    assert LONGEST_EXECUTION_S + env.grading_timeout_s < pool.evaluate_timeout_s


@pytest.mark.parametrize("pool", ["desktop"], indirect=True)
def test_our_desktops_deadlines_end_before_the_pool_s(pool):
    patience_s = Guest("http://guest").patience_s
    start_s = signature(DockerDesktop).parameters["start_timeout_s"].default
    assert max(start_s, API_TIMEOUT_S) + patience_s + WINDOWS_TIMEOUT_S + CALL_TIMEOUT_S < pool.reset_timeout_s
    assert patience_s + CALL_TIMEOUT_S < min(pool.step_timeout_s, pool.evaluate_timeout_s)


@pytest.mark.parametrize("pool", ["osworld", "desktop"], indirect=True)
def test_in_a_cluster_both_kinds_of_desktops_go_where_an_engine_is(pool):
    assert pool.backend == {"_target_": "arpo.envs.pool.ray.RayBackend", "placement": "docker"}
