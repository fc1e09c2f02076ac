"""The studies: what they say is computed from runs, by formulas that were computed by hand here."""

import json
import os
import shutil
import signal
import subprocess
import sys
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from arpo.agent.actions import TypeText
from arpo.apps.comparison.compare import Measure, evaluated, mean_of
from arpo.apps.comparison.runs import read_run
from arpo.apps.comparison.words import report
from arpo.envs.contract import check_env
from arpo.evaluation.intervals import Interval
from arpo.run.build import build
from experiments import collect as collector
from experiments import curves, studies, study
from experiments import run as runner
from experiments.message_environment import verdict
from experiments.methods import reading
from experiments.miniwob import collect as miniwob
from experiments.replay_ablation import collect as ablation
from experiments.scheduling import collect as scheduling
from experiments.studies import STUDIES, minutes_to
from experiments.study import Arm, compare_arms, summarize
from tests.apps.comparison.folders import STUDY, compose, rebuild_replay_ablation, write_run


def test_the_bootstrap_interval_is_the_same_every_time_and_lies_within_the_values_and_one_value_has_none():
    values = [0.1, 0.2, 0.3, 0.4, 0.5]
    interval = study.bootstrap_interval(values, draws=2000)
    assert interval == study.bootstrap_interval(values, draws=2000)
    assert min(values) < interval.low < interval.mean < interval.high < max(values)
    # the mean of 5 draws has deviation sqrt(0.02 / 5) = 0.0632, so ±1.96 of it is 0.124 (discrete: about)
    assert interval.high - interval.low == pytest.approx(2 * 0.124, abs=0.03)
    assert study.bootstrap_interval([0.3], draws=10) == Interval(0.3, None, None)


def test_the_study_of_replay_is_made_again_byte_by_byte_from_what_it_measured(tmp_path, monkeypatch, capsys):
    rebuild_replay_ablation(tmp_path)
    monkeypatch.setattr(ablation, "HERE", tmp_path)
    ablation.main([str(tmp_path)])
    for name in ("results.csv", "summary.json"):
        assert (tmp_path / name).read_bytes() == (STUDY / name).read_bytes()
    printed = capsys.readouterr().out.strip()
    assert f"<!-- measured -->\n{printed}\n<!-- /measured -->" in (STUDY / "README.md").read_text()


@pytest.mark.parametrize(("gains", "shown"), [([0.1, 0.11, 0.12], False), ([0.3, -0.2, 0.1], True)])
def test_the_report_admits_an_interval_that_contains_zero(tmp_path, gains, shown):
    for seed, gain in enumerate(gains):
        for arm, success in (("off", 0.4), ("on", 0.4 + gain)):
            write_run(tmp_path / "replay_ablation", f"replay={arm},seed={seed}", [success] * 5, seed=seed)
    words = ablation.report(ablation.measured(tmp_path))
    assert ("does not show that replay helps" in words) == shown
    assert "0123456789" in words
    assert "2 cores, 8.0 GB, no GPU" in words


def test_the_evaluation_after_the_last_update_is_reported_where_both_arms_have_it(tmp_path):
    root = tmp_path / "replay_ablation"
    for seed in range(2):
        for arm, rate in (("off", 0.5), ("on", 0.75)):
            evaluations = {5: {"in_domain": rate + 0.01 * seed}}
            write_run(root, f"replay={arm},seed={seed}", [0.4] * 5, seed=seed, evaluations=evaluations)
    summary = ablation.summarize(ablation.measured(tmp_path))
    assert summary["arms"]["ARPO"]["evaluated_success"] == pytest.approx(0.755)  # (0.75 + 0.76) / 2
    assert summary["evaluated_difference"]["student"]["mean"] == pytest.approx(0.25)
    assert "after the last update the difference is +25.0 points" in ablation.report(ablation.measured(tmp_path))


PLAIN, CURATED = Arm("plain", "study"), Arm("curated", "study", ("replay=pool", "module.objective.clip_high=0.28"))
MEASURES = (
    Measure("evaluated", "success", evaluated("in_domain"), is_compared=True),
    Measure("leased", "leased", mean_of("env/leased")),
)


def write_arm(outputs: Path, arm: Arm, seed: int, final: float, **options) -> None:
    folder = arm.folder(outputs, seed)
    write_run(folder.parent, folder.name, [0.5] * 4, seed=seed, evaluations={4: {"in_domain": final}}, **options)


def test_arms_are_compared_with_the_reference_by_seed_and_lie_where_their_commands_put_them(tmp_path):
    assert CURATED.folder(tmp_path, 3) == tmp_path / "study" / "module.objective.clip_high=0.28,replay=pool,seed=3"
    long = Arm("long", "study", tuple(f"rollout.settings.key_{number}=1" for number in range(9)))
    assert len(long.folder(tmp_path, 0).name) < 100  # cut, as `train.py` cuts it
    words = "replay=pool module.objective.clip_high=0.28 seed=0,1"
    assert CURATED.command((0, 1)) == f"python train.py -m resume=auto experiment=study {words}"
    # differences 0.10, 0.20, 0.00, 0.10, 0.10 at very different levels, as above
    for seed, (low, gain) in enumerate([(0.1, 0.10), (0.7, 0.20), (0.3, 0.00), (0.5, 0.10), (0.2, 0.10)]):
        write_arm(tmp_path, PLAIN, seed, low)
        write_arm(tmp_path, CURATED, seed, low + gain)
    comparison = compare_arms(tmp_path, [PLAIN, CURATED], MEASURES, against="plain")
    difference = summarize(comparison)["difference"]["curated"]["evaluated"]["student"]
    assert difference["low"] == pytest.approx(0.0122010, abs=1e-6)
    words = report(comparison)
    assert "- *curated*, success: **+10.0 points [+1.2, +18.8]**, 5 paired seeds (0, 1, 2, 3, 4); higher." in words
    assert "| 1 | 70.0 % | 90.0 % |" in words


def test_an_arm_that_was_not_run_yet_is_compared_with_nothing_and_one_of_another_budget_is_refused(tmp_path):
    with pytest.raises(ValueError, match="no run has come to its end: run the commands first"):
        compare_arms(tmp_path, [PLAIN, CURATED], MEASURES, against="plain")
    write_arm(tmp_path, PLAIN, 0, 0.5)
    write_arm(tmp_path, CURATED, 0, 0.5, budget=9)
    comparison = compare_arms(tmp_path, [PLAIN, CURATED], MEASURES, against="plain")
    summary = summarize(comparison)
    assert summary["difference"] == {"curated": {"evaluated": None}}
    folder = CURATED.folder(tmp_path, 0)
    assert summary["left_out"] == [f"study/{folder.name}: 4 of 9 iterations"]
    assert "*curated* is not compared with *plain*: one of them has no run" in report(comparison)
    shutil.rmtree(folder)
    write_run(folder.parent, folder.name, [0.5] * 5, evaluations={5: {"in_domain": 0.5}})
    with pytest.raises(ValueError, match=r"different numbers of iterations \(iterations: 4 and 5\)"):
        compare_arms(tmp_path, [PLAIN, CURATED], MEASURES, against="plain")


def test_the_time_to_a_success_is_counted_until_five_iterations_reach_it_together(tmp_path):
    successes = [0.0, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5]
    folder = write_run(tmp_path, "run", successes, metrics={"time/iteration": 30.0, "time/rollout": 6.0})
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    del lines[1]["time/iteration"]  # the first one has no beginning: its parts are counted
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    run = read_run(folder)
    # The mean of the first five is 0.4, that of the second to the sixth 0.5: after 6 + 5 x 30 = 156 s.
    assert minutes_to(0.5)(run) == pytest.approx(156 / 60)
    assert minutes_to(0.4)(run) == pytest.approx(126 / 60)
    assert minutes_to(0.6)(run) is None


def test_a_study_is_written_and_drawn_by_its_name(tmp_path, monkeypatch, capsys):
    for arm in STUDIES["subset"].arms:
        small_run(tmp_path / "outputs", arm, 0, {"miniwob/a/1000": 4, "miniwob/a/1002": 1})
    monkeypatch.setattr(collector, "HERE", tmp_path)
    (tmp_path / "subset").mkdir()
    (tmp_path / "subset" / "README.md").write_text("<!-- measured -->\n<!-- /measured -->\n")
    collector.main(["subset", str(tmp_path / "outputs"), "--write"])
    assert capsys.readouterr().out.strip() in (tmp_path / "subset" / "README.md").read_text("utf-8")
    assert json.loads((tmp_path / "subset" / "summary.json").read_text())["reference"] == "128 tasks"
    (tmp_path / "subset" / "plot.png").unlink()
    collector.main(["subset", "--plot"])
    assert (tmp_path / "subset" / "plot.png").exists()


@pytest.mark.parametrize("name", STUDIES)
def test_the_page_of_a_study_has_the_command_of_every_arm(name):
    collected = STUDIES[name]
    page = (study.ROOT / "experiments" / name / "README.md").read_text("utf-8")
    typed = [line for line in page.splitlines() if line.startswith("python train.py")]
    assert typed == [arm.command(collected.seeds) for arm in collected.arms]
    assert page.count("<!-- measured -->") == page.count("<!-- /measured -->") == 1


def test_all_runs_of_a_study_start_one_by_one_the_first_arm_first_and_it_says_whether_all_have_ended(
    monkeypatch, capsys, tmp_path
):
    found = [command[1:] for command in runner.commands("offline_online")]
    arms, offline = STUDIES["offline_online"].arms, 3 * 2
    assert found[0] == ["train.py", "-m", "resume=auto", "experiment=miniwob_small", "replay=off", "seed=0"]
    assert len(found) == 5 * (len(arms) - offline) + 3 * offline  # offline arms have three seeds
    assert [command[-1] for command in found[:: len(arms)]][:3] == ["seed=0", "seed=1", "seed=2"]
    script = tmp_path / "run.py"
    script.write_text("import sys\nsys.exit('bad' in sys.argv)")
    started = [[sys.executable, str(script), word] for word in ("good", "bad", "so")]
    monkeypatch.setattr(runner, "commands", lambda _: started)
    assert runner.main(["methods", "--at-once", "2"]) == 1
    assert capsys.readouterr().out.splitlines()[-1] == "2 of 3 runs have ended"


INTERRUPTED = """
import signal, sys, time
from experiments import run
def end(*_):
    time.sleep(1)  # a run that is asked to stop finishes its iteration
    print("checkpoint", flush=True)
    sys.exit(130)
if sys.argv[1:] == ["train"]:
    signal.signal(signal.SIGINT, end)
    print("ready", flush=True)
    signal.pause()
run.commands = lambda _: [[sys.executable, sys.argv[0], "train"]]
run.main(["methods"])
"""


@pytest.mark.long
def test_a_study_that_is_stopped_lets_its_first_run_write_a_checkpoint(tmp_path):
    script = tmp_path / "study.py"
    script.write_text(INTERRUPTED)
    with subprocess.Popen(
        [sys.executable, "-u", str(script)],
        env={**os.environ, "PYTHONPATH": str(runner.ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,  # as a terminal does: Ctrl-C reaches both processes
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line == "ready\n":
                os.killpg(process.pid, signal.SIGINT)
                break
        assert process.stdout.read() == "checkpoint\n"
    assert process.returncode != 0


def test_methods_are_listed_best_first_with_their_distance_from_arpo(tmp_path):
    chosen = STUDIES["methods"]
    for arm, gain in zip(chosen.arms[:3], (0.0, -0.1, 0.1), strict=True):
        for seed in (0, 1):
            folder = arm.folder(tmp_path, seed)
            evaluations = {5: {"in_domain": 0.5 + 0.2 * seed + gain}}
            write_run(folder.parent, folder.name, [0.4] * 5, seed=seed, evaluations=evaluations)
    rows = studies.gains(compare_arms(tmp_path, chosen.arms, chosen.measures, against="ARPO")).splitlines()
    assert [row.split(" | ")[0] for row in rows[2:6]] == ["| DART", "| ARPO", "| GRPO", "| SPA"]
    assert rows[2] == "| DART | 70.0 % | 40.0 % | +10.0 points [+10.0, +10.0] | +0.0 points [+0.0, +0.0] |"
    assert rows[5] == "| SPA | – | – | – | – |"


def test_the_page_of_the_methods_says_what_its_stored_numbers_say(capsys):
    reading.main([])
    page = (reading.HERE / "README.md").read_text("utf-8")
    differences, curves_say = capsys.readouterr().out.strip().split("\n\n")
    assert differences in page
    assert f"<!-- curves -->\n{curves_say}\n<!-- /curves -->" in page
    # 1 - t / sqrt(t^2 + 2) with t = 15.4167 / 1.2800 = 12.0441, times 28
    assert "(p 0.007, Holm of 28: 0.191)" in differences
    assert "higher" not in differences
    assert "lower" not in differences
    assert "DART* injects 9, 7, 8 successes" in curves_say
    # iterations 12 to 16: (46.25 + 51.25 + 51.875) / 3; iterations 8 to 12: (46.25 + 47.1875 + 45.625) / 3
    assert "(49.8 %) against ARPO's after as many updates, iterations 8 to 12 (46.4 %): **+3.4 points" in curves_say


def test_bars_are_made_of_every_run_s_measures(tmp_path):
    runs = [
        {"arm": "plain", "seed": 0, "held_out": 0.2, "trained": 0.5},
        {"arm": "plain", "seed": 1, "held_out": 0.3, "trained": None},
        {"arm": "another", "seed": 0, "held_out": 0.9},
    ]
    (tmp_path / "summary.json").write_text(json.dumps({"runs": runs}))
    found = curves.of_seeds(tmp_path, {"absent": "A", "plain": "P"}, {"trained": "training", "held_out": "seeds"})
    assert found == {"P": {"training": [0.5], "seeds": [0.2, 0.3]}}
    assert curves.turned(found) == {"training": {"P": [0.5]}, "seeds": {"P": [0.2, 0.3]}}


def test_of_lines_about_one_setting_of_the_scheduling_benchmark_the_last_counts(tmp_path):
    setting = {"command": "law", "world": "small", "schedule": "decoupled", "environments": 8, "groups": 1}
    first = setting | {"lag": 1, "predicted_speedup": 2.0, "measured_speedup": 1.0, "bound_by": "lag"}
    lines = [first, setting | {"lag": 0}, first | {"measured_speedup": 1.6}]
    (tmp_path / "scheduling.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    results = scheduling.read(tmp_path / "scheduling.jsonl")
    assert [line["lag"] for line in results] == [1, 0]
    assert scheduling.law(results).splitlines()[2:] == ["| small | 1 | lag | 2.00 | 1.60 | +25.0 % |"]  # 2 / 1.6


def small_run(outputs: Path, arm: Arm, seed: int, successes: dict[str, int], *, lists=("in_domain",)) -> None:
    """A run of one iteration whose evaluation has four episodes of each task."""
    folder = arm.folder(outputs, seed)
    write_run(folder.parent, folder.name, [0.5], seed=seed, metrics={"group/degenerate": 0.25})
    tasks = [{"name": task, "episodes": 4, "successes": count} for task, count in successes.items()]
    pages = [one | {"name": one["name"].split("/")[1]} for one in tasks]
    overall = {"success_rate": sum(successes.values()) / (4 * len(tasks))}
    result = {"overall": overall, "tasks": tasks, "domains": pages}
    (folder / "eval").mkdir()
    (folder / "eval" / "iteration_000001.json").write_text(json.dumps(dict.fromkeys(lists, result)))


def test_the_pages_where_arpo_leads_most_come_first(tmp_path):
    for seed, (grpo, arpo) in enumerate([(1, 3), (0, 2)]):
        small_run(tmp_path, studies.GRPO, seed, {"miniwob/a/1000": 4, "miniwob/b/1001": grpo})
        small_run(tmp_path, studies.ARPO, seed, {"miniwob/a/1000": 2, "miniwob/b/1001": arpo})
    comparison = compare_arms(tmp_path, STUDIES["generalisation"].arms, studies.EVALUATED, against="GRPO")
    assert studies.page_rows(comparison, "in_domain") == [
        ["b", "–", "12.5 %", "62.5 %", "+50.0"],  # 1 of 8 and 5 of 8
        ["a", "–", "100.0 %", "50.0 %", "-50.0"],
    ]
    words = studies.figure_4(comparison)
    assert "| the 32 tasks | – | 56.2 % | 56.2 % |" in words
    assert "| *paper: 96 other tasks of OSWorld* | 55.2 % | 52.1 % | 56.3 % |" in words


def test_the_subset_is_the_one_of_the_configuration_and_both_lists_are_measured_on_one_evaluation(tmp_path):
    cfg = compose("experiment=miniwob_small")
    trained, judged = build(cfg.tasks.train), build(cfg.tasks.in_domain)
    assert (len(trained), len(judged)) == (32, 128)
    assert [task for task in judged if studies.is_of_the_subset(task.id)] == trained
    assert build(compose("experiment=miniwob_small", "tasks=miniwob_128").tasks.train) == judged
    for arm in STUDIES["subset"].arms:
        small_run(tmp_path, arm, 0, {f"miniwob/a/100{seed}": done for seed, done in ((0, 4), (1, 2), (2, 1), (7, 0))})
    comparison = compare_arms(tmp_path, STUDIES["subset"].arms, STUDIES["subset"].measures, against="128 tasks")
    found = comparison.values["32 tasks"][0]
    assert (found["subset"], found["others"]) == (6 / 8, 1 / 8)
    assert found["signal"] == 0.75  # 1 - 0.25
    assert found["held_out"] is None


def test_offline_arms_are_shown_at_both_numbers_of_steps(tmp_path):
    for arm in (studies.GRPO, studies.EQUAL[1], studies.MORE[1]):
        done = 3 if arm in studies.MORE else 1
        tasks, lists = {"miniwob/a/1000": done, "miniwob/a/1002": done}, ("in_domain", "held_out", "held_out_pages")
        small_run(tmp_path, arm, 0, tasks, lists=lists)
    comparison = compare_arms(tmp_path, STUDIES["offline_online"].arms, studies.EVALUATED, against="GRPO")
    rows = studies.figure_6(comparison).splitlines()
    assert "| DPO | 25.0 % | 25.0 % | 25.0 % | 25.0 % | 75.0 % | 75.0 % | 75.0 % | 75.0 % | 22.4 % |" in rows
    assert "| GRPO | 25.0 % | 25.0 % | 25.0 % | 25.0 % | – | – | – | – | 26.0 % |" in rows


def test_the_arms_of_the_paper_in_small_have_one_budget():
    online = compose("experiment=miniwob_small")
    steps = online.iterations * online.module.minibatches
    episodes = online.iterations * online.datamodule.sampler.tasks_per_iteration * online.rollout.settings.group_size
    assert (steps, episodes) == (80, 2560)
    for arm in studies.EQUAL:
        offline = compose(f"experiment={arm.experiment}", "seed=3")
        assert (offline.datamodule.steps, offline.datamodule.first) == (steps, None)
        assert offline.source == str(studies.BASE.folder(Path("outputs"), 3))
    base = compose("experiment=base_rollouts")
    assert (base.module.optimizer.lr, base.module.optimizer.weight_decay, base.replay._target_) == (0, 0, None)
    assert build(base.tasks.train) == build(online.tasks.train)


def main_run(root: Path, arm: str, *, seed: int, base: float, final: float) -> Path:
    """A run of `replay=on` or `replay=off`."""
    times = {"time/rollout": 12.0, "time/update": 3.0, "time/sync": 1.0, "time/env": 90.0, "time/generate": 30.0}
    kept = {"held_out": 0.1, "held_out_pages": 0.05}
    evaluations = {0: {"in_domain": base, **kept}, 4: {"in_domain": final, **kept, "held_out": 0.2}}
    options = {"seed": seed, "metrics": times, "evaluations": evaluations}
    folder = write_run(root / "arpo_miniwob", f"replay={arm},seed={seed}", [0.5] * 4, **options)
    for iteration, pages in ((0, {"click-tab": 0.2, "enter-text": 0.4}), (4, {"click-tab": final, "enter-text": 0.5})):
        path = folder / "eval" / f"iteration_{iteration:06d}.json"
        results = json.loads(path.read_text())
        domains = [{"name": page, "success_rate": rate, "episodes": 25} for page, rate in pages.items()]
        path.write_text(json.dumps(results | {"held_out": results["held_out"] | {"domains": domains}}))
    return folder


def test_the_main_job_is_summed_up_over_seeds_beside_grpo(tmp_path):
    for seed, (grpo, arpo) in enumerate(((0.65, 0.75), (0.65, 0.85))):
        main_run(tmp_path, "on", seed=seed, base=0.25, final=arpo)
        main_run(tmp_path, "off", seed=seed, base=0.25, final=grpo)
    found = miniwob.facts(miniwob.measured(tmp_path))
    # rises 0.5 and 0.6: s = 0.0707107, s / sqrt(2) = 0.05, t(0.975, 1) = 12.7062: half = 0.6353102
    assert found["intervals"]["ARPO"]["in_domain_rise"].low == pytest.approx(0.55 - 0.6353102, abs=1e-6)
    rows = miniwob.success_table(found).splitlines()[2:]
    # differences 0.1 and 0.2: the same deviation about 0.15
    assert rows[0].startswith("| training tasks | 25.0 % | 65.0 % | 80.0 % | +55.0 points [-8.5, +118.5] |")
    assert rows[0].endswith("| +15.0 points [-48.5, +78.5], 2 seeds |")
    assert rows[1].startswith("| held-out seeds | 10.0 % | 20.0 % | 20.0 % | +10.0 points")
    words = miniwob.headline(found)
    assert "from 25.0 % to 80.0 % on training tasks, +55.0 points [-8.5, +118.5]" in words
    assert "ARPO − GRPO is +15.0 points [-48.5, +78.5], 2 seeds" in words
    assert set(miniwob.bars(found).values) == {"warm start", "after GRPO", "after ARPO"}


def test_success_on_held_out_seeds_is_told_page_by_page_the_best_first(tmp_path):
    for seed, after in enumerate((0.5, 0.7)):
        main_run(tmp_path, "on", seed=seed, base=0.25, final=after)
    found = miniwob.facts(miniwob.measured(tmp_path))
    assert found["pages"] == [
        {"page": "click-tab", "episodes": 25, "before": pytest.approx(0.2), "after": pytest.approx(0.6)},
        {"page": "enter-text", "episodes": 25, "before": pytest.approx(0.4), "after": pytest.approx(0.5)},
    ]
    report = miniwob.report(found)
    assert "| click-tab | 25 | 20.0 % | 60.0 % |" in report
    assert "| training tasks | 25.0 % | – | 60.0 % |" in report  # no run without replay yet


def test_a_run_is_summed_up_by_the_parts_of_its_time_its_injections_and_its_pages(tmp_path):
    folder = main_run(tmp_path, "on", seed=0, base=0.25, final=0.75)
    metrics, judged = folder / "metrics.jsonl", folder / "eval" / "iteration_000000.json"
    lines = metrics.read_text().splitlines()
    lines[1] = json.dumps(json.loads(lines[1]) | {"replay/injected": 3})
    metrics.write_text("\n".join(lines) + "\n")
    pages = json.loads(judged.read_text())
    del pages["held_out"]["domains"][1:]
    judged.write_text(json.dumps(pages))
    found = miniwob.facts(miniwob.measured(tmp_path))
    split = found["time"]
    assert (split["rollout"], split["update"], split["sync"], split["evaluation"]) == (48.0, 12.0, 4.0, 4.0)
    assert split["wall"] == 100.0
    assert split["rest"] == 32.0  # 100 - 48 - 12 - 4 - 4
    assert split["environment"] == pytest.approx(36.0)  # 48 * 90 / (90 + 30)
    assert split["generation"] == pytest.approx(12.0)
    assert miniwob.injections(found).startswith("A past success was injected in 25.0 %")  # 1 of 4
    assert "| enter-text | 25 | – | 50.0 % |" in miniwob.page_table(found)  # which was not judged before
    for seed, seconds in ((1, 90), (2, 50), (3, 70)):
        record = main_run(tmp_path, "on", seed=seed, base=0.25, final=0.75) / "run.json"
        (start,) = json.loads(record.read_text())["starts"]
        start["updated"] = (datetime.fromisoformat(start["started"]) + timedelta(seconds=seconds)).isoformat()
        record.write_text(json.dumps({"starts": [start]}))
    assert miniwob.facts(miniwob.measured(tmp_path))["time"]["wall"] == 50  # the fastest one


def test_runs_of_one_arm_with_different_configurations_are_refused_by_their_keys(tmp_path):
    for seed in range(3):
        folder = main_run(tmp_path, "on", seed=seed, base=0.25, final=0.75)
    path = folder / "config.yaml"
    path.write_text(path.read_text() + "warmstart: another\n")
    with pytest.raises(ValueError, match="the runs of ARPO are of different configurations: warmstart"):
        miniwob.measured(tmp_path)


def test_only_what_stands_between_the_one_pair_of_marks_is_rewritten(tmp_path):
    page = tmp_path / "README.md"
    page.write_text("before\n<!-- measured -->\nold \\1\n<!-- /measured -->\nafter\n")
    study.write_block(page, "new \\1\nlines")
    assert page.read_text() == "before\n<!-- measured -->\nnew \\1\nlines\n<!-- /measured -->\nafter\n"
    for text in ("no marks", "<!-- measured -->\n<!-- /measured -->\n" * 2):
        page.write_text(text)
        with pytest.raises(ValueError, match="exactly once"):
            study.write_block(page, "new")
        assert page.read_text() == text


def test_the_sheet_of_message_environments_is_worth_what_a_program_types():
    (task,) = verdict.numbered_tasks(1, start=7)
    check_env(verdict.Sheet(), task)
    sheet = verdict.Sheet()
    sheet.reset(task)
    for typed, worth in (("0.25", 0.25), ("no number", 0.25), ("7", 1.0), ("nan", 0.0)):
        sheet.step(TypeText(typed))
        assert sheet.evaluate() == worth
