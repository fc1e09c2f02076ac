"""Arguments are checked by the signatures of their constructors, and by the constructors themselves."""

import re

import pytest
from omegaconf import OmegaConf

from arpo.errors import ConfigError
from arpo.run.arguments import check_arguments, try_constructors


def test_a_key_that_no_constructor_reads_and_one_that_is_missing_are_named_with_their_place():
    unknown = {"_target_": "arpo.replay.ReplayBuffer", "capcity": 8, "seed": 1, "_partial_": True}
    lacking = {key: value for key, value in SETTINGS.items() if key != "max_steps"}
    with pytest.raises(ConfigError) as refused:
        check_arguments(OmegaConf.create({"buffers": [unknown], "settings": lacking}))
    assert "buffers.0.capcity: there is capacity_per_task; arpo.replay" in str(refused.value)
    assert "settings.max_steps is missing: arpo.rollout.settings" in str(refused.value)
    check_arguments(OmegaConf.create({"settings": lacking | {"_partial_": True}}))  # somebody gives it later


def test_a_key_is_free_where_nothing_is_built_or_anything_is_taken():
    node = {"_target_": "arpo.run.build.build", "node": 1, "anything": 1}
    absent = {"path": "???", "off": None, "none": {"_target_": None, "inner": "???"}}
    gone = {"_target_": "arpo.envs.not_yet.Env", "speed": 1}  # which building names better
    check_arguments(OmegaConf.create({"name": "x", "nested": {"free": 1}, "task": node, "env": gone} | absent))


SETTINGS = {"_target_": "arpo.rollout.settings.RolloutSettings", "group_size": 4, "max_steps": 2}
SETTINGS |= {"max_tokens": 8, "max_context": 64}


@pytest.mark.parametrize("value", [4.5, True, None, [4]], ids=str)
def test_a_value_of_a_wrong_type_is_named_with_its_key_and_a_whole_number_is_a_fraction(value):
    with pytest.raises(ConfigError, match=rf"settings\.group_size={re.escape(str(value))} should be a valid integer"):
        check_arguments(OmegaConf.create({"settings": SETTINGS | {"group_size": value}}))
    screen = {"_target_": "arpo.envs.miniwob.env.MiniWobEnv", "screen": [168, 210], "tabs": 1}
    check_arguments(OmegaConf.create({"rollout": SETTINGS | {"temperature": 1}, "make": screen}))


def test_a_choice_is_listed_and_a_number_in_the_place_of_a_rule_hears_what_stands_there():
    env = {"_target_": "arpo.envs.desktop.env.DockerDesktop", "_partial_": True, "reset": "sometimes"}
    sampler = {"_target_": "arpo.rollout.sampler.ShuffledTasks", "group_size": 4, "_partial_": True}
    collector = {"_target_": "arpo.datamodules.collecting.DemonstrationCollector", "pool": None, "_partial_": True}
    with pytest.raises(ConfigError) as refused:
        check_arguments(OmegaConf.create({"collector": collector, "env": env, "sampler": sampler}))
    assert "env.reset=sometimes should be 'in_place', 'restart' or 'fresh'" in str(refused.value)
    assert "sampler.group_size=4 should be a node with a _target_ that makes a func" in str(refused.value)
    assert "collector.pool=None should be a node with a _target_\n" in str(refused.value)


def test_a_value_is_refused_by_the_constructor_with_the_key_where_it_is_written():
    evaluation = {"_target_": "arpo.evaluation.settings.EvaluationSettings", "temperature": -1}
    callback = {"_target_": "arpo.callbacks.evaluation.Evaluation", "tasks": {}, "directory": "eval"}
    tree = {"callbacks": {"evaluation": callback | {"settings": "${evaluation}"}}, "evaluation": evaluation}
    with pytest.raises(ConfigError, match=r"temperature must be at least 0.*\(configuration key: evaluation\)"):
        try_constructors(OmegaConf.create(tree))
    wait = {"_target_": "datetime.timedelta", "hours": "four"}  # a built-in class: Python cannot read its signature
    with pytest.raises(ConfigError, match=r"hours.*str \(configuration key: engine\.timeout\)"):
        try_constructors(OmegaConf.create({"engine": {"timeout": wait}}))


def test_a_constructor_that_is_called_later_is_tried_where_nothing_is_missing_and_it_runs_here(monkeypatch):
    desktop = {"_target_": "arpo.envs.desktop.env.DockerDesktop", "_partial_": True, "network": "half"}
    with pytest.raises(ConfigError, match=r"network one of .*'half'\) \(configuration key: env|network.*half"):
        try_constructors(OmegaConf.create({"env": desktop}))
    later = {"_target_": "arpo.rollout.settings.RolloutSettings", "_partial_": True}
    try_constructors(OmegaConf.create({"env": desktop | {"network": "open"}, "make": later}))  # starts no container
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    try_constructors(OmegaConf.create({"env": desktop}))  # a desktop of other nodes


def test_only_rooms_and_parts_that_were_asked_for_are_tried():
    tree = OmegaConf.create({"rollout": {"settings": SETTINGS | {"group_size": 0}}, "off": {"_target_": None}})
    try_constructors(tree, ("lightning.",))
    try_constructors(tree, parts=("env",))
    with pytest.raises(ConfigError):
        try_constructors(tree, ("arpo.rollout.",), ("rollout",))
