"""Arguments are checked by the signatures of their constructors, and by the constructors themselves."""

import pytest
from omegaconf import OmegaConf

from arpo.errors import ConfigError
from arpo.run.arguments import check_arguments, try_constructors


def test_a_key_that_no_constructor_reads_is_named_with_its_place_and_those_that_exist():
    tree = {"buffers": [{"_target_": "arpo.replay.ReplayBuffer", "capcity": 8, "seed": 1, "_partial_": True}]}
    with pytest.raises(ConfigError, match=r"buffers\.0\.capcity: there is capacity_per_task; arpo\.replay"):
        check_arguments(OmegaConf.create(tree))


def test_a_key_is_free_where_nothing_is_built_or_anything_is_taken():
    node = {"_target_": "arpo.run.build.build", "node": 1, "anything": 1}
    check_arguments(OmegaConf.create({"name": "x", "nested": {"free": 1}, "task": node}))


def test_a_value_that_nobody_has_given_is_no_node():
    check_arguments(OmegaConf.create({"path": "???", "off": None, "none": {"_target_": None, "inner": "???"}}))


def test_a_target_that_does_not_exist_is_left_to_whoever_builds_it():
    node = {"_target_": "arpo.envs.not_yet.Env", "speed": 1}
    check_arguments(OmegaConf.create({"env": node, "off": {"_target_": None, "a": 1}}))


SETTINGS = {
    "_target_": "arpo.rollout.settings.RolloutSettings",
    "group_size": 4,
    "max_steps": 2,
    "max_tokens": 8,
    "max_context": 64,
}


def wrong(**changes):
    with pytest.raises(ConfigError) as error:
        check_arguments(OmegaConf.create({"rollout": {"settings": SETTINGS | changes}}))
    return str(error.value)


@pytest.mark.parametrize(
    ("value", "wish"),
    [("four", "integer"), (4.5, "integer"), (True, "integer"), (None, "integer"), ([4], "integer")],
    ids=str,
)
def test_a_value_of_a_wrong_type_is_named_with_its_key(value, wish):
    message = wrong(group_size=value)
    assert f"rollout.settings.group_size={value} should be a valid {wish}" in message


def test_a_whole_number_is_a_fraction_and_a_list_is_a_tuple():
    check_arguments(OmegaConf.create({"rollout": SETTINGS | {"temperature": 1}}))
    check_arguments(
        OmegaConf.create({"make": {"_target_": "arpo.envs.miniwob.env.MiniWobEnv", "screen": [168, 210], "tabs": 1}})
    )


def test_a_choice_is_listed():
    tree = {"env": {"_target_": "arpo.envs.desktop.env.DockerDesktop", "_partial_": True, "reset": "sometimes"}}
    with pytest.raises(ConfigError, match=r"env\.reset=sometimes should be 'in_place', 'restart' or 'fresh'"):
        check_arguments(OmegaConf.create(tree))


def test_a_number_in_the_place_of_a_rule_hears_what_stands_there():
    sampler = {"_target_": "arpo.rollout.sampler.ShuffledTasks", "group_size": 4, "_partial_": True}
    with pytest.raises(ConfigError, match=r"sampler\.group_size=4 should be a node with a _target_ that makes a func"):
        check_arguments(OmegaConf.create({"sampler": sampler}))


def test_an_argument_that_is_missing_is_named_unless_somebody_gives_it_later():
    node = {key: value for key, value in SETTINGS.items() if key != "max_steps"}
    with pytest.raises(ConfigError, match=r"settings\.max_steps is missing: arpo\.rollout\.settings"):
        check_arguments(OmegaConf.create({"settings": node}))
    check_arguments(OmegaConf.create({"settings": node | {"_partial_": True}}))


def test_a_value_is_refused_by_the_constructor_with_the_key_where_it_is_written():
    tree = {"module": {"settings": "${rollout.settings}"}, "rollout": {"settings": SETTINGS | {"group_size": 0}}}
    with pytest.raises(
        ConfigError, match=r"group_size must be at least 1, got 0 \(configuration key: rollout\.settings"
    ):
        try_constructors(OmegaConf.create(tree))


def test_the_key_is_that_of_the_shared_node_and_not_of_those_that_refer_to_it():
    tree = OmegaConf.create(
        {
            "evaluation": {"_target_": "arpo.evaluation.settings.EvaluationSettings", "temperature": -1},
            "callbacks": {
                "evaluation": {
                    "_target_": "arpo.callbacks.evaluation.Evaluation",
                    "tasks": {},
                    "directory": "eval",
                    "settings": "${evaluation}",
                }
            },
        }
    )
    with pytest.raises(ConfigError, match=r"temperature must be at least 0.*\(configuration key: evaluation\)"):
        try_constructors(tree)


def test_a_constructor_that_is_called_later_is_tried_where_nothing_is_missing():
    desktop = {"_target_": "arpo.envs.desktop.env.DockerDesktop", "_partial_": True, "network": "half"}
    with pytest.raises(ConfigError, match=r"network one of .*'half'\) \(configuration key: env|network.*half"):
        try_constructors(OmegaConf.create({"env": desktop}))
    try_constructors(OmegaConf.create({"env": desktop | {"network": "open"}}))  # starts no container
    try_constructors(
        OmegaConf.create({"make": {"_target_": "arpo.rollout.settings.RolloutSettings", "_partial_": True}})
    )


def test_a_value_whose_type_no_signature_tells_is_refused_with_its_key():
    wait = {"_target_": "datetime.timedelta", "hours": "four"}  # a built-in class: Python cannot read its signature
    with pytest.raises(ConfigError, match=r"hours.*str \(configuration key: engine\.timeout\)"):
        try_constructors(OmegaConf.create({"engine": {"timeout": wait}}))


def test_environments_of_other_nodes_are_not_tried_here(monkeypatch):
    disk = {"_target_": "arpo.envs.desktop.env.DockerDesktop", "_partial_": True, "network": "half"}
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    try_constructors(OmegaConf.create({"env": disk}))


def test_only_rooms_and_parts_that_were_asked_for_are_tried():
    tree = OmegaConf.create({"rollout": {"settings": SETTINGS | {"group_size": 0}}, "off": {"_target_": None}})
    try_constructors(tree, ("lightning.",))
    try_constructors(tree, parts=("env",))
    with pytest.raises(ConfigError):
        try_constructors(tree, ("arpo.rollout.",), ("rollout",))
