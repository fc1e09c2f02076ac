"""List of what a person can do here: `python -m arpo`, and its commands."""

import logging
import os
import signal
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from arpo.host.environment import set_up_process

COMMANDS = {
    "train": ("python train.py experiment=arpo_miniwob", "Train a policy; conf/experiment/ has all experiments."),
    "evaluate": ("python evaluate.py experiment=… checkpoint=…", "Measure how often a policy succeeds."),
    "export": (
        "python evaluate.py experiment=… checkpoint=… export=DIR",
        "Write a policy as a directory that transformers and vLLM load.",
    ),
    "merge": (
        "python -m arpo merge outputs/a/policy=0.5 outputs/b/policy=0.5 --to outputs/merged",
        "Write the weighted mean of policies of one model as a policy.",
    ),
    "episodes": (
        "python -m arpo episodes outputs/arpo_miniwob/default --to parquet",
        "Write a run's episodes, screenshots inside, as a dataset with a card.",
    ),
    "new": (
        "python -m arpo new env kiosk --to ../kiosk",
        "Write a package with an environment or a method that trains at once, for you to change.",
    ),
    "view": (
        "python -m arpo view outputs/arpo_miniwob/default",
        "Write a folder that shows a run in a browser: groups, episodes, steps, tokens, and what updates did to them.",
    ),
    "select": (
        "python evaluate.py --config-name=select experiment=… checkpoint=…",
        "Choose the tasks that a policy sometimes solves.",
    ),
    "plan": (
        "python -m arpo plan experiment=… gpus=8 gpu=h100-80",
        "Estimate memory, time and disk of a run before anything is rented.",
    ),
    "rehearse": (
        "python -m arpo rehearse experiment=…",
        "Make a scaled-down dry run on this machine, with stand-ins for GPUs and desktops, and a crash on the way.",
    ),
    "compare": (
        "python -m arpo compare 'outputs/arpo_miniwob/*'",
        "Compare finished runs over seeds: intervals, curves, and what differs between them.",
    ),
    "plot": ("tensorboard --logdir outputs", "Look at the curves and episodes of all runs."),
    "doctor": ("python -m arpo doctor", "Check whether this machine can run real desktops, and how fast."),
    "look": ("python -m arpo doctor --look", "Start one desktop and write a picture of it."),
    "mcp": ("python -m arpo mcp", "Serve the desktop of an episode to an agent that speaks MCP and starts this."),
    "tasks": (
        "python -m arpo tasks osworld",
        "Show what OSWorld's tasks need and what is here; `tasks fetch` downloads their files beforehand.",
    ),
}
"""The meaning of each word: the command to type, and what it does."""

_OF_A_RUN = "It takes every key of a run, such as seed=1: `python train.py --help` lists them"
KEYS = {"plan": f"{_OF_A_RUN}, and conf/plan.yaml those of a plan.\n", "rehearse": f"{_OF_A_RUN}.\n"}
"""The last line of a command's help, where it takes keys."""

TOOLS = {
    "merge": "arpo.apps.merge",
    "episodes": "arpo.apps.dataset.parquet",
    "compare": "arpo.apps.comparison.command",
    "new": "arpo.apps.new",
    "view": "arpo.apps.viewer.command",
    "tasks": "arpo.apps.tasks",
    "mcp": "arpo.apps.mcp_server",
}
"""Where the commands are that have arguments of their own; each is imported when it is asked for."""

REMOVED = {
    "watch": "`python -m arpo view RUN --serve` follows a live run, `python -m arpo doctor --look` pictures a desktop"
}
"""Former words that have gone, and what to type instead."""


def overview() -> str:
    """Return the list of commands, two lines each."""
    lines = ["ARPO trains GUI agents with reinforcement learning. You can:", ""]
    for name, (command, purpose) in COMMANDS.items():
        lines += [f"  {name:<10}{purpose}", f"  {'':<10}$ {command}", ""]
    return "\n".join([*lines, "`make help` lists set-up, tests and checks; README.md explains them all.", ""])


def main(arguments: Sequence[str]) -> int:
    """Run the command line and return its exit status."""
    match list(arguments):
        case [] | ["-h" | "--help" | "help"]:
            sys.stdout.write(overview())
            return 0
        case ["train" | "evaluate" as word, _, *_]:
            program = Path(__file__).parent.parent / f"{word}.py"
            os.execv(sys.executable, [sys.executable, str(program), *arguments[1:]])
        case [word, "-h" | "--help"] if word in COMMANDS and (word not in TOOLS or word == "mcp"):
            command, purpose = COMMANDS[word]
            sys.stdout.write(f"{purpose}\n\n  $ {command}\n\n{KEYS.get(word, '')}")
            return 0
        case ["doctor", *rest] if rest in ([], ["--look"]):
            from arpo.apps import doctor

            return doctor.look() if rest else doctor.main()
        case [word, *rest] if word in TOOLS:
            return tool(word, rest)
        case ["plan" | "rehearse" as word, *overrides]:
            return compute(word, overrides)
        case [word, *_] if word in REMOVED:
            message = f"`python -m arpo {word}` has gone: {REMOVED[word]}"
        case [word] if word in COMMANDS:
            message = f"`python -m arpo {word}` is not a command of its own; type `{COMMANDS[word][0]}`"
        case _:
            message = (
                f"`python -m arpo` does not know {' '.join(arguments)!r}; without arguments it lists what you can do"
            )
    sys.stderr.write(f"{message}.\n")
    return 2


def tool(word: str, rest: Sequence[str]) -> int:
    """Run a command that has arguments of its own, and return its exit status: 2 where it says what is wrong."""
    from arpo.errors import ArpoError
    from arpo.host.log_lines import log_to_terminal

    log_to_terminal()
    try:
        status: int = import_module(TOOLS[word]).main(rest)
    except ArpoError as error:
        logging.getLogger("arpo").error("%s", error)  # noqa: TRY400 - the sentence is for a person
        return 2
    return status


def compute(word: str, overrides: Sequence[str]) -> int:
    """Run a command that takes the overrides of a run, and return its exit status."""
    from arpo.run.entry import quiet

    quiet()  # before the libraries are imported that read it then
    program = "arpo.apps.plan.command" if word == "plan" else "arpo.apps.rehearsal.rehearse"
    status: int = import_module(program).main(overrides)
    return status


if __name__ == "__main__":
    set_up_process()
    try:
        status = main(sys.argv[1:])
        sys.stdout.flush()
    except BrokenPipeError:  # `head` has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or the last flush fails, too
        status = 128 + signal.SIGPIPE
    sys.exit(status)
