"""What is said of a name that there is not."""

import pytest

from arpo.errors import ConfigError
from arpo.run.build import compose


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["rollout.settings.temprature=1"], "there is temperature; rollout.settings has group_size, max_steps, "),
        (["rollout.setings.order=finished"], "rollout.setings.order: there is settings; rollout has make_engine, "),
        (["module.lr=1"], "module.lr: there is module.optimizer.lr; module has "),
        (["temperature=1"], r"temperature: there is module\.temperature and rollout\.settings\.temperature"),
        (["temprature=1"], r"temprature: there is .*rollout\.settings\.temperature"),
        (["lr=1"], r"lr: there is module\.optimizer\.lr"),
        (["curriculum.epochs=3"], "curriculum.epochs: the choice of curriculum has no such key"),
        (["module/critc=two_layer"], "module/critc: there is critic; module has "),
        (["replai=on"], "replai: there is replay; a run has name"),
        (["~callbacks.weightsync"], "callbacks.weightsync: there is weight_sync; callbacks has iteration_axis, "),
        (["method=gigpo", "module.objective.stepweight=1"], "stepweight: there is step_weight; "),
        (["replay=relevance", "replay.buffer.choice=newest"], "replay.buffer.choice: replay.buffer has temperature, "),
        (["experiment=arpo_miniwop"], "experiment=arpo_miniwop: there is arpo_miniwob; choose one of arpo_128_"),
        (["replay=xxxx"], "^replay=xxxx: choose one of adapr, off, on, pool, relevance$"),
        (["+replay=on"], "^replay appears more than once in the final defaults list$"),
    ],
)
@pytest.mark.parametrize("name", ["train", "evaluate", "plan"])
def test_the_nearest_name_is_said(name, words, said):
    with pytest.raises(ConfigError, match=said):
        compose(name, words)


def test_every_misspelt_word_has_its_line():
    with pytest.raises(ConfigError, match=r"^sed: there is seed; .*\nnam: there is name; [^\n]*$"):
        compose("train", ["sed=1", "experiment=smoke", "nam=a"])
