"""The studies that are nothing but arms, measures and a picture: `python experiments/collect.py NAME` makes one."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from statistics import fmean
from typing import Any

from arpo.apps.comparison import arms as compared_arms
from arpo.apps.comparison.compare import (
    FINAL,
    Comparison,
    Measure,
    Of,
    count_of,
    evaluated,
    final,
    mean_of,
    minutes,
)
from arpo.apps.comparison.curves import Panel
from arpo.apps.comparison.runs import SUCCESS, Run
from arpo.apps.comparison.words import DASH, percent, table
from experiments.curves import Bars, of_seeds, turned
from experiments.study import Arm, Study, read_arms, scores

TRAINED = Measure("trained", "success of the last 5 iterations", final(SUCCESS))
ALL_FAILED = Measure("all_failed", "groups that failed as a whole", mean_of("group/all_failed"))
INJECTED = Measure("injected", "injections an iteration", count_of("replay/injected"), digits=2)
MINUTES = Measure("minutes", "minutes of a run", minutes, digits=1)
ON_ITS_TASKS = Measure("evaluated", "success after the last update", evaluated("in_domain"), is_compared=True)
TRAINING = Panel("success", "training success (%)", 100)
AFTER = "success after the last update (%)"


def seconds(line: Mapping[str, Any]) -> float:
    """Return the wall time of an iteration; its parts where it was the first, whose beginning is unknown."""
    parts = (line.get(f"time/{part}") or 0.0 for part in ("rollout", "update", "sync"))
    return line.get("time/iteration") or sum(parts)


def minutes_to(target: float) -> Of:
    """Return the measure of the minutes until the mean success of `FINAL` iterations in a row reaches a target."""

    def measure(run: Run) -> float | None:
        passed = 0.0
        successes: list[float] = []
        for line in run.iterations:
            passed += seconds(line)
            successes.append(line[SUCCESS] or 0.0)
            if len(successes) >= FINAL and fmean(successes[-FINAL:]) >= target:
                return passed / 60
        return None

    return measure


# --- old samples, and what corrects them ----------------------------------------------------------------------------

LAG = "rollout.settings.max_policy_lag"
CORRECTION = "module.objective.correction"
POLICY_LAG = Study(
    title="Lags and corrections on MiniWoB++",
    arms=(
        Arm("lag 0", "policy_lag"),
        Arm("lag 1", "policy_lag", (f"{LAG}=1",)),
        Arm("lag 8", "policy_lag", (f"{LAG}=8",)),
        Arm("lag 8, truncated a token", "policy_lag", (f"{LAG}=8", f"{CORRECTION}=tis_token")),
        Arm("lag 8, decoupled PPO", "policy_lag", (f"{LAG}=8", f"{CORRECTION}=decoupled")),
    ),
    measures=(
        ON_ITS_TASKS,
        TRAINED,
        Measure("lag", "lag of a step, mean", mean_of("rollout/lag_mean"), digits=2),
        Measure("ess", "effective sample size of the importance ratios", mean_of("policy/importance_ess")),
        Measure("cut", "share of tokens that the correction touches", mean_of("policy/weight_cut")),
        MINUTES,
    ),
    columns={"seconds": seconds, "success": SUCCESS, "lag": "rollout/lag_mean", "ess": "policy/importance_ess"},
    panels=(TRAINING, Panel("lag", "lag of a step (updates)"), Panel("ess", "effective sample size (%)", 100)),
)


# --- DART -----------------------------------------------------------------------------------------------------------

CURATIONS = {
    "+ rollout number": "rollout_number=dynamic",
    "+ trajectory length": "trajectory_length=dynamic",
    "+ high-entropy steps": "module.objective.high_entropy_steps=0.8",
    "+ pool": "replay=pool",
}
"""What is added, in the order of the paper's table."""
DART_ABLATION = Study(
    title="Curation on uneven MiniWoB++ tasks",
    arms=(
        Arm("no curation", "dart_ablation"),
        *(
            Arm(name, "dart_ablation", overrides)
            for name, overrides in zip(CURATIONS, accumulate((line,) for line in CURATIONS.values()), strict=True)
        ),
    ),
    measures=(
        ON_ITS_TASKS,
        ALL_FAILED,
        Measure("all_succeeded", "groups that succeeded as a whole", mean_of("group/all_succeeded")),
        Measure("episodes", "episodes an iteration", mean_of("rollout/episodes"), digits=1),
        Measure("steps", "steps an episode", mean_of("rollout/steps"), digits=2),
        INJECTED,
        MINUTES,
    ),
    columns={"seconds": seconds, "success": SUCCESS, "episodes": "rollout/episodes", "steps": "rollout/steps"},
    panels=(TRAINING, Panel("episodes", "episodes an iteration"), Panel("steps", "steps an episode")),
)

NEARLY = 0.9
"""The share of ARPO's final success whose time is measured: half of the runs never reach the mean of all of them."""
AHEAD = (f"{LAG}=1", "rollout.settings.order=finished")
SHORT = ("iterations=24",)


def against_arpo(outputs: Path, arms: Sequence[Arm]) -> tuple[Measure, ...]:
    """Return what is measured of DART and ARPO, the minutes to a share of ARPO's final success among it.

    Raises:
        ValueError: If no run of ARPO came to its end.
    """
    runs = read_arms(outputs, arms[:1])[0][0].runs.values()
    successes = [success for run in runs if (success := final(SUCCESS)(run)) is not None]
    if not successes:
        raise ValueError(f"no run of experiment={arms[0].experiment} is complete, with which the others are compared")
    return (
        replace(ON_ITS_TASKS, words="success on the training tasks after the last update"),
        TRAINED,
        Measure("held_out", "success on held-out tasks", evaluated("held_out")),
        Measure(
            "minutes_to",
            "minutes to 90 % of ARPO's success at the end",
            minutes_to(NEARLY * fmean(successes)),
            digits=1,
        ),
        replace(MINUTES, words="minutes of a run, with evaluations"),
        Measure("iteration", "seconds an iteration", mean_of("time/iteration"), digits=2),
        Measure("leased", "environment time that belongs to an episode", mean_of("env/leased")),
        Measure("acting", "environment time in which one works", mean_of("env/acting")),
    )


DART_MINIWOB = Study(
    title="DART and ARPO on MiniWoB++",
    arms=(
        Arm("ARPO", "arpo_miniwob_fixed"),
        Arm("ARPO, decoupled", "arpo_miniwob_fixed", AHEAD),
        Arm("DART", "dart_miniwob"),
    ),
    measures=against_arpo,
    columns={"seconds": seconds, "success": SUCCESS, "leased": "env/leased", "acting": "env/acting"},
    panels=(TRAINING, Panel("leased", "environments leased (%)", 100), Panel("seconds", "seconds an iteration")),
)
DART_DESKTOP32 = replace(
    DART_MINIWOB,
    title="DART and ARPO on Docker desktops",
    arms=(Arm("ARPO", "arpo_desktop32", SHORT), Arm("DART", "dart_desktop32", SHORT)),
)


# --- the paper in small: what its studies share ---------------------------------------------------------------------

SMALL = "miniwob_small"
GRPO = Arm("GRPO", SMALL, ("replay=off",))
ARPO = Arm("ARPO", SMALL)
BASE = Arm("base", "base_rollouts")
"""The policy that all arms start from: its runs play, learn nothing, and are evaluated as the others are."""
LISTS = {
    "subset": "the 32 tasks",
    "others": "96 other tasks",
    "held_out": "held-out seeds",
    "held_out_pages": "held-out pages",
}
"""What a policy is evaluated on, with the words for it: the 32 tasks of `tasks=miniwob_subset32` first."""
OF_THE_SUBSET = ("1000", "1001")
"""The seeds of `tasks=miniwob_subset32`, as task ids end with them."""
COLUMNS = {"success": SUCCESS, "all_failed": "group/all_failed", "injected": "replay/injected"}


def success(found: Sequence[dict[str, Any]]) -> float | None:
    """Return the success rate over all episodes of some scores; None where there is none."""
    episodes = sum(score["episodes"] for score in found)
    return sum(score["successes"] for score in found) / episodes if episodes else None


def evaluated_where(listed: str, belongs: Callable[[str], bool]) -> Of:
    """Return the measure of the success on those tasks of a list whose id belongs to some."""
    return lambda run: success([score for score in scores(run, run.budget, listed, "tasks") if belongs(score["name"])])


def is_of_the_subset(task: str) -> bool:
    """Whether a task of the list of 128 is one of the 32."""
    return task.rpartition("/")[2] in OF_THE_SUBSET


EVALUATED = tuple(
    Measure(name, f"success on {LISTS[name]}", of, is_compared=True)
    for name, of in {
        "subset": evaluated_where("in_domain", is_of_the_subset),
        "others": evaluated_where("in_domain", lambda task: not is_of_the_subset(task)),
        "held_out": evaluated("held_out"),
        "held_out_pages": evaluated("held_out_pages"),
    }.items()
)
"""The success after the last update on each of the lists."""


def by_page(arm: compared_arms.Arm, listed: str) -> dict[str, float | None]:
    """Return the success on each page of a task list, over all episodes of an arm's runs."""
    found: dict[str, list[dict[str, Any]]] = {}
    for run in arm.runs.values():
        for score in scores(run, run.budget, listed, "domains"):
            found.setdefault(score["name"], []).append(score)
    return {page: success(of_page) for page, of_page in found.items()}


def bars_of(arms: Sequence[Arm]) -> Callable[[Path], tuple[Bars, ...]]:
    """Return what draws the success of some arms on each of the lists."""
    names = {arm.name: arm.name for arm in arms}
    return lambda folder: (Bars(AFTER, of_seeds(folder, names, LISTS)),)


# --- figure 4: what of training holds elsewhere ---------------------------------------------------------------------

SHOWN = (BASE, GRPO, ARPO)
"""In the order of the paper's figure."""
FIGURE_4 = {
    "paper: 32 training tasks of OSWorld": (0.438, 0.688, 0.8125),
    "paper: 96 other tasks of OSWorld": (0.552, 0.521, 0.563),
}
"""Figure 4 of arXiv 2505.16282: base, GRPO, ARPO."""


def figure_4(comparison: Comparison) -> str:
    """The success of base, GRPO and ARPO, ours and the paper's, and ours by page."""
    arms = [next(arm for arm in comparison.arms if arm.name == shown.name) for shown in SHOWN]
    names = [arm.name for arm in arms]
    ours = [[words, *(percent(comparison.mean(arm, name)) for arm in arms)] for name, words in LISTS.items()]
    theirs = [[f"*{words}*", *map(percent, values)] for words, values in FIGURE_4.items()]
    pages = [
        table([f"{words}, by page", *names, "ARPO - GRPO"], page_rows(comparison, name))
        for name, words in {"in_domain": "the 128 tasks", "held_out": LISTS["held_out"]}.items()
    ]
    return "\n\n".join([table(["success after the last update", *names], [*ours, *theirs]), *pages])


def page_rows(comparison: Comparison, listed: str) -> list[list[str]]:
    """A row a page: the success of base, GRPO and ARPO over all seeds; first where ARPO leads GRPO by most."""
    found = {arm.name: by_page(arm, listed) for arm in comparison.arms}
    pages = dict.fromkeys(page for of_arm in found.values() for page in of_arm)
    gains = {page: gain(found[ARPO.name].get(page), found[GRPO.name].get(page)) for page in pages}
    return [
        [page, *(percent(found[arm.name].get(page)) for arm in SHOWN), points(gains[page])]
        for page in sorted(pages, key=lambda page: (-(gains[page] or 0.0), page))
    ]


def gain(arpo: float | None, grpo: float | None) -> float | None:
    """ARPO minus GRPO; None where one of them is not known."""
    return None if arpo is None or grpo is None else arpo - grpo


def points(share: float | None) -> str:
    """A difference in points, or a dash."""
    return DASH if share is None else f"{100 * share:+.1f}"


def bars_of_figure_4(folder: Path) -> tuple[Bars, ...]:
    """Our numbers, and the paper's in the order in which ours have their colours."""
    lists = {"32 training tasks": 0, "96 others": 1}
    values = [*FIGURE_4.values()]
    at = {arm.name: place for place, arm in enumerate(SHOWN)}
    arms = GENERALISATION.arms
    paper = {arm.name: {words: [values[row][at[arm.name]]] for words, row in lists.items()} for arm in arms}
    return (*bars_of(arms)(folder), Bars("the paper, OSWorld (%)", paper))


GENERALISATION = Study(
    title="What of training holds elsewhere",
    arms=(GRPO, ARPO, BASE),
    seeds=(0, 1, 2, 3, 4),
    measures=(*EVALUATED, TRAINED, ALL_FAILED, MINUTES),
    columns=COLUMNS,
    first=figure_4,
    panels=(TRAINING,),
    bars=bars_of_figure_4,
)


# --- figure 5: 32 training tasks and 128 ----------------------------------------------------------------------------


def with_signal(of: Of) -> Of:
    """The measure of the share of groups with a signal, from that of those whose rewards are all equal."""
    return lambda run: None if (share := of(run)) is None else 1 - share


OF_32_AND_128 = (Arm("128 tasks", SMALL, ("tasks=miniwob_128",)), replace(ARPO, name="32 tasks"))
SUBSET = Study(
    title="Training on 32 tasks and on 128",
    arms=OF_32_AND_128,
    subject="tasks.train.*",
    measures=(
        *EVALUATED,
        TRAINED,
        Measure("reward", "task reward of the last 5 iterations", final("rollout/task_reward"), digits=3),
        Measure("deviation", "deviation of rewards in a group, whole run", mean_of("group/reward_std"), digits=3),
        Measure("final_deviation", "deviation, last 5 iterations", final("group/reward_std"), digits=3),
        Measure("signal", "groups with a signal, whole run", with_signal(mean_of("group/degenerate"))),
        Measure("final_signal", "groups with a signal, last 5 iterations", with_signal(final("group/degenerate"))),
        ALL_FAILED,
        INJECTED,
        MINUTES,
    ),
    columns=COLUMNS
    | {
        "reward": "rollout/task_reward",
        "deviation": "group/reward_std",
        "signal": lambda line: None if (share := line.get("group/degenerate")) is None else 1 - share,
    },
    panels=(
        Panel("reward", "task reward"),
        Panel("deviation", "deviation of rewards in a group"),
        Panel("signal", "groups with a signal (%)", 100),
    ),
    bars=bars_of(OF_32_AND_128),
)


# --- figure 6: offline and online -----------------------------------------------------------------------------------

METHODS = {"rejection sampling": "offline_rs_small", "DPO": "offline_dpo_small", "KTO": "offline_kto_small"}
"""The experiments of the offline methods; GRPO takes as many optimizer steps as each of their files says, 80."""
LONGER = 320
"""Optimizer steps of the arms that may learn longer from the same episodes."""
THREE = (0, 1, 2)
"""Seeds of the offline arms; five are for ARPO against GRPO."""
EQUAL = tuple(Arm(name, experiment, seeds=THREE) for name, experiment in METHODS.items())
MORE = tuple(
    Arm(f"{name}, {LONGER} steps", experiment, (f"datamodule.steps={LONGER}",), THREE)
    for name, experiment in METHODS.items()
)
FIGURE_6 = {"rejection sampling": 0.218, "DPO": 0.224, "KTO": 0.246, "GRPO": 0.26, "ARPO": 0.273}
"""Section 4.6 of arXiv 2505.16282: success on OSWorld."""
BELOW_A_BAR = {"rejection sampling": "RS"}
"""Names that would not fit there."""


def figure_6(comparison: Comparison) -> str:
    """The success of every method, at equal steps, with more steps, and the paper's."""
    arms = {arm.name: arm for arm in comparison.arms}
    longer = dict(zip(METHODS, MORE, strict=True))

    def cell(arm: Arm | None, key: str) -> str:
        return DASH if arm is None else percent(comparison.mean(arms[arm.name], key))

    lines = [
        [arm.name]
        + [cell(arm, key) for key in LISTS]
        + [cell(longer.get(arm.name), key) for key in LISTS]
        + [percent(FIGURE_6.get(arm.name))]
        for arm in (BASE, *EQUAL, GRPO, ARPO)
    ]
    header = [*LISTS.values(), *(f"{words}, {LONGER} steps" for words in LISTS.values()), "paper: OSWorld"]
    return table(["success after the last update", *header], lines)


def bars_of_figure_6(folder: Path) -> tuple[Bars, ...]:
    """The success of the base, of the offline arms and of both online arms by task list, and the paper's."""

    def panel(label: str, arms: Sequence[Arm]) -> Bars:
        offline = {arm.name: BELOW_A_BAR.get(name, name) for name, arm in zip(METHODS, arms, strict=True)}
        names = {BASE.name: BASE.name} | offline | {arm.name: arm.name for arm in (GRPO, ARPO)}
        return Bars(label, turned(of_seeds(folder, names, LISTS)))

    paper = {"OSWorld": {BELOW_A_BAR.get(name, name): [share] for name, share in FIGURE_6.items()}}
    return (
        panel("success, equal episodes and steps (%)", EQUAL),
        panel(f"success, offline {LONGER} steps (%)", MORE),
        Bars("the paper (%)", paper, top=40),
    )


OFFLINE_ONLINE = Study(
    title="Offline and online",
    arms=(GRPO, ARPO, BASE, *EQUAL, *MORE),
    seeds=(0, 1, 2, 3, 4),
    measures=(
        *(replace(measure, is_compared=measure.key != "held_out_pages") for measure in EVALUATED),
        TRAINED,
        MINUTES,
    ),
    columns=COLUMNS,
    first=figure_6,
    panels=(),
    bars=bars_of_figure_6,
)


# --- tasks without end ----------------------------------------------------------------------------------------------

OF_TEMPLATES = {
    "held_out_instances": "fresh instances of the training templates",
    "in_domain": "two training instances of each",
    "held_out_templates": "held-out templates",
    "held_out_applications": "held-out application",
}


def before(name: str) -> Of:
    """The measure of the success on a task list before the first update."""
    return lambda run: run.evaluations.get(0, {}).get(name)


def risen(name: str) -> Of:
    """The measure of the success on a task list after the last update less that before the first."""
    after = evaluated(name)
    return lambda run: gain(after(run), before(name)(run))


def rises(comparison: Comparison) -> str:
    """The success on each task list before and after training, and its rise, over the seeds."""
    (arm,) = comparison.arms

    def line(name: str, words: str) -> list[str]:
        spread = comparison.spread(arm, f"{name}_rise")
        means = [percent(comparison.mean(arm, f"{name}_{when}")) for when in ("before", "after")]
        return [words, *means, DASH if spread is None else spread.interval.points()]

    header = ["success", "warm start", "at the end", "rise [95 %]"]
    return table(header, [line(name, words) for name, words in OF_TEMPLATES.items()])


TEMPLATES = Study(
    title="Tasks without end on Docker desktops",
    arms=(Arm("ARPO", "arpo_desktop"),),
    measures=(
        *(Measure(f"{name}_before", f"{words}, before", before(name)) for name, words in OF_TEMPLATES.items()),
        *(Measure(f"{name}_after", f"{words}, after", evaluated(name)) for name, words in OF_TEMPLATES.items()),
        *(Measure(f"{name}_rise", f"{words}, rise", risen(name)) for name, words in OF_TEMPLATES.items()),
        TRAINED,
        ALL_FAILED,
        INJECTED,
        Measure("iteration", "seconds an iteration", mean_of("time/iteration"), digits=2),
        MINUTES,
    ),
    columns=COLUMNS,
    first=rises,
    panels=(TRAINING, Panel("all_failed", "groups that failed as a whole (%)", 100)),
)


# --- whose success may be replayed, and seeds a page ----------------------------------------------------------------

OF_TASK_AND_PAGE = (
    Arm("same task", SMALL, ("tasks=miniwob_128",)),
    Arm("same page", SMALL, ("replay.buffer.key=domain", "tasks=miniwob_128")),
)
"""The runs of the first one are those of the study `subset`."""
REPLAY_KEY = Study(
    title="Whose success may join a group of failures",
    arms=OF_TASK_AND_PAGE,
    measures=(
        *EVALUATED,
        TRAINED,
        ALL_FAILED,
        Measure("degenerate", "groups without a signal before replay", mean_of("group/degenerate")),
        replace(INJECTED, words="injections an iteration, of 8 groups"),
        MINUTES,
    ),
    columns=COLUMNS,
    panels=(TRAINING, Panel("injected", "injections an iteration")),
    bars=bars_of(OF_TASK_AND_PAGE),
)

NUMBERS = (1, 4, 16, 64, 256)
OF_SEEDS = tuple(Arm(f"{number} a page", "seeds_a_page", (f"tasks.train.per_page={number}",)) for number in NUMBERS)
BY_SEEDS = {"trained": "training tasks, last 5", "held_out": "held-out seeds", "held_out_pages": "held-out pages"}


def bars_of_seeds(folder: Path) -> tuple[Bars, ...]:
    """The success on three task lists by the number of training seeds."""
    names = {arm.name: str(number) for arm, number in zip(OF_SEEDS, NUMBERS, strict=True)}
    return (Bars("success by training seeds a page (%)", turned(of_seeds(folder, names, BY_SEEDS))),)


SEEDS_A_PAGE = Study(
    title="Training seeds a page",
    arms=OF_SEEDS,
    subject="tasks.train.*",
    measures=(
        *(measure for measure in EVALUATED if measure.key.startswith("held_out")),
        Measure("base", "success on held-out seeds before training", before("held_out")),
        Measure("base_pages", "success on held-out pages before training", before("held_out_pages")),
        TRAINED,
        ALL_FAILED,
        INJECTED,
        MINUTES,
    ),
    columns=COLUMNS,
    panels=(TRAINING, Panel("injected", "trajectories injected (per iteration)")),
    bars=bars_of_seeds,
)

# --- methods --------------------------------------------------------------------------------------------------------

OF_METHODS = {
    "ARPO": (),
    "GRPO": ("replay=off",),
    "DART": ("preset=dart_paper",),
    "SPA": ("method=spa",),
    "AdaPR": ("replay=adapr",),
    "failure curriculum": ("curriculum=failures",),
    "UI-TARS-2": ("method=ui_tars2", "module.objective.length_weight=2"),
    "ComputerRL": ("method=computer_rl",),
    "Entropulse": ("entropulse=on", "entropulse.share=0.8"),
    "stages": ("curriculum=stages", "datamodule.sampler.stage_iterations=5"),
    "C3PO": ("method=c3po", "module.objective.budget=1200"),
    "DigiRL": ("method=digirl",),
    "relevance": ("replay=relevance",),
    "UI-S1, then ARPO": ("warmstart=warmstart_sparse_semi_online",),
    "Mobile-R1, then ARPO": ("warmstart=warmstart_sparse_actions",),
}
"""The words of each arm beside `experiment=methods`; the order is that of docs/methods.md."""


def gains(comparison: Comparison) -> str:
    """A row an arm: its success, and how it differs from ARPO's, best first."""
    keys = {"evaluated": "after the last update", "trained": "last 5 iterations"}
    arms = sorted(comparison.arms, key=lambda arm: -(comparison.mean(arm, "evaluated") or 0.0))
    lines = [
        [arm.name]
        + [percent(comparison.mean(arm, key)) for key in keys]
        + [difference_in_points(comparison, arm, key) for key in keys]
        for arm in arms
    ]
    differences = [f"minus ARPO, {words}" for words in keys.values()]
    return table(["success", *keys.values(), *differences], lines)


def difference_in_points(comparison: Comparison, arm: compared_arms.Arm, key: str) -> str:
    """How an arm differs from the reference, with its interval; a dash where no seed has both."""
    found = None if arm is comparison.reference else comparison.difference(arm, key)
    return DASH if found is None or not found.seeds else found.interval.points()


OF_ALL_METHODS = Study(
    title="Methods on sparse MiniWoB++ tasks",
    arms=tuple(Arm(name, "methods", words) for name, words in OF_METHODS.items()),
    subject="warmstart model.path",
    measures=(
        ON_ITS_TASKS,
        replace(TRAINED, is_compared=True),
        ALL_FAILED,
        INJECTED,
        Measure("episodes", "episodes an iteration", mean_of("rollout/episodes"), digits=1),
        MINUTES,
    ),
    columns=COLUMNS,
    first=gains,
    panels=(TRAINING,),
)

# --- distillation ---------------------------------------------------------------------------------------------------

DISTILLATION = Study(
    title="On-policy distillation on the desktop in memory",
    arms=(
        Arm("GRPO", "smoke", ("engine=hf", "replay=off", "evaluation.rollouts_per_task=8")),
        Arm("distillation", "distillation"),
    ),
    subject="module.* name teacher",
    measures=(
        ON_ITS_TASKS,
        replace(TRAINED, is_compared=True),
        Measure("base", "success before training", before("in_domain")),
        Measure("held_out", "success on held-out tasks", evaluated("held_out")),
        ALL_FAILED,
        MINUTES,
    ),
    columns=COLUMNS | {"kl_teacher": "train/kl_teacher"},
    panels=(TRAINING, Panel("kl_teacher", "KL(student, teacher) a token (nats)")),
)

STUDIES = {
    "distillation": DISTILLATION,
    "methods": OF_ALL_METHODS,
    "policy_lag": POLICY_LAG,
    "dart_ablation": DART_ABLATION,
    "dart_miniwob": DART_MINIWOB,
    "dart_desktop32": DART_DESKTOP32,
    "generalisation": GENERALISATION,
    "subset": SUBSET,
    "offline_online": OFFLINE_ONLINE,
    "replay_key": REPLAY_KEY,
    "seeds_a_page": SEEDS_A_PAGE,
    "templates": TEMPLATES,
}
"""By the folder that has its page and its results."""
