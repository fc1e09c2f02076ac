"""Each way to learn, as a person chooses it: killed after an iteration, it ends bit for bit like one left alone.

All but the last two with transformers in place of vLLM.
"""

import signal
from statistics import fmean

import pytest
import torch

from arpo.models.policy import Policy
from arpo.run.evaluate import policy_directory
from arpo.run.overrides import override_of
from arpo.run.warmstart import WarmStart
from tests.integration.runs import assert_same_checkpoint

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(1200)]

ITERATIONS = 4
OF_ANOTHER_FAMILY = "model=tiny_qwen3"
WORDS = {
    "adapr": "replay=adapr",
    "relevance": "replay=relevance",
    "entropulse": "entropulse=on entropulse.share=1 entropulse.window=1",
    "failures": "curriculum=failures",
    "stages": "curriculum=stages datamodule.sampler.stage_iterations=1",
    "spa": "method=spa",
    "computer_rl": "method=computer_rl",
    "gigpo": "method=gigpo",
    "c3po": "method=c3po module.objective.budget=120",
    "cispo": "method=cispo",
    "entropy": "module.objective.entropy_coefficient=0.01",
    "ppo": "method=ppo",
    "two_layer": "method=ppo module/critic=two_layer",
    "ui_tars2": "method=ui_tars2 module.critic_warmup=2 module.objective.length_weight=2",
    "digirl": "method=digirl",
    "ui_s1": "method=ui_s1 env=recorded tasks=recorded",
    "mobile_r1": "method=mobile_r1 env=recorded tasks=recorded",
    "qwen3": OF_ANOTHER_FAMILY,
    "judge": "judge=own rollout.settings.max_context=2048",
}
"""A run each, by its words."""


@pytest.mark.parametrize("name", WORDS)
def test_each_way_to_learn_goes_on_where_it_was_killed(smoke, ending, tmp_path, name):
    words = ["engine=hf", "env.backend=thread", f"iterations={ITERATIONS}", *WORDS[name].split()]
    if OF_ANOTHER_FAMILY in words:  # the first run makes its policy
        policy = WarmStart("warmstart_fake", str(tmp_path), model=OF_ANOTHER_FAMILY.removeprefix("model=")).policy
        words += [override_of("paths.output", str(tmp_path)), override_of("model.path", policy)]
    if "env=recorded" in words:
        words.append(f"source={smoke.policy.parent / 'demonstrations'}")
    whole, killed = (ending(smoke.again(tmp_path / name, *words)) for name in ("whole", "killed"))
    assert whole.go() == 0, whole.said
    killed.start()
    killed.wait_until(lambda: len(killed.checkpoints) == 2, "its second checkpoint")
    killed.send(signal.SIGKILL)
    assert killed.wait() == -signal.SIGKILL
    assert killed.go("resume=auto") == 0, killed.said
    assert killed.learned == whole.learned
    assert_same_checkpoint(killed.checkpoints[-1], whole.checkpoints[-1])
    assert len(whole.metrics) == ITERATIONS + 1
    assert any(line.get("train/grad_norm") for line in whole.metrics)  # something was learned
    if name == "spa":  # transformers and the trainer agree
        assert all(line["engine/logprob_gap_mean"] <= 1e-4 for line in whole.metrics[1:])
    whole.assert_nothing_left()


@pytest.mark.engine
@pytest.mark.ray
def test_a_window_of_screenshots_is_sampled_and_trained_alike(smoke, ending, tmp_path):
    """The engine's log-probabilities are the trainer's: both read the same ids and the same screenshots."""
    how = (
        "rollout.settings.image_window=1",
        "module.objective.estimator=step_grpo",
        "module.objective.correction=tis_token",
        "module.objective.high_entropy_steps=0.8",
    )
    run = ending(smoke.again(tmp_path / "run", "iterations=2", *how))
    assert run.go() == 0, run.said
    trajectories = run.trajectories([0, 1])
    assert {trajectory.image_window for trajectory in trajectories} == {1}
    assert max(len(trajectory.steps) for trajectory in trajectories) > 1
    for line in run.metrics[1:]:
        assert line["engine/logprob_gap_max"] <= 1e-3
        assert line["policy/weight_ess"] > 0.999
        assert 0.7 < line["policy/trained_steps"] < 1
        assert line["rollout/lag_max"] == 0
    run.assert_nothing_left()


TWO_RANKS = ("trainer=fsdp", "trainer.devices=2", "trainer.accelerator=cpu", "engine=fleet", "engine.num_gpus=0")
KILLED_AFTER = 5


@pytest.mark.engine
@pytest.mark.ray
def test_two_ranks_with_vllm_in_an_actor_go_on_after_a_kill_and_learn_what_one_process_exports(
    smoke, ending, tmp_path
):
    run = ending(smoke.again(tmp_path / "run", *TWO_RANKS))
    run.start()
    run.wait_for_rollout(KILLED_AFTER)
    run.process.kill()
    run.wait()
    assert run.checkpoints[-1].name == f"iteration_{KILLED_AFTER:06d}.ckpt"
    assert run.go("resume=auto") == 0, run.said
    assert [line["step"] for line in run.metrics] == list(range(smoke.iterations + 1))
    assert all(line["engine/logprob_gap_max"] <= 1e-4 for line in run.metrics[1:])
    rates = [line["rollout/success_rate"] for line in run.metrics[1:]]
    assert fmean(rates[-3:]) >= fmean(rates[:3]) + 0.25
    run.assert_nothing_left()
    trained, first = Policy(policy_directory(run.checkpoints[-1], tmp_path / "policy")), Policy(smoke.policy)
    pairs = zip(trained.parameters(), first.parameters(), strict=True)
    assert all(not torch.equal(now, then) for now, then in pairs)
