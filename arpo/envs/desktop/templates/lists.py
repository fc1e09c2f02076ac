"""All templates by name, and lists of tasks from them: a task is a template and a seed."""

from collections.abc import Iterable

from arpo.envs.desktop.templates import (
    browser,
    calc,
    calculator,
    files,
    gimp,
    impress,
    mousepad,
    several,
    terminal,
    writer,
)
from arpo.envs.desktop.templates.template import Instance, Template, templates_in
from arpo.errors import TaskFormatError
from arpo.types import Task

_FILES = (files, mousepad, terminal, calculator, calc, writer, impress, browser, gimp, several)
TEMPLATES = {template.name: template for file in _FILES for template in templates_in(file)}


def template_tasks(
    templates: Iterable[str], seeds: Iterable[int], without: Iterable[Iterable[str]] = ()
) -> list[Task]:
    """Return one task for every template and seed, but for templates in one of the lists `without`; see `named`."""
    numbers = list(seeds)
    left_out = {template.name for names in without for name in names for template in named(name)}
    chosen = {template.name: template for name in templates for template in named(name)}
    kept = [template for name, template in chosen.items() if name not in left_out]
    return [template_task(template, seed) for template in kept for seed in numbers]


def template_task(template: Template, seed: int) -> Task:
    """Return the task of a template and a seed."""
    config = {"template": template.name, "seed": seed}
    instruction = template.instance(seed).instruction
    return Task(f"{template.name}/{seed}", instruction, domain=template.application, config=config)


def instance_of(task: Task) -> Instance:
    """Return the instance of a task of a template."""
    template, seed = TEMPLATES.get(task.config["template"]), task.config.get("seed")
    if template is None or not isinstance(seed, int):
        raise TaskFormatError(f"task {task.id!r}: there is no template of {dict(task.config)}")
    return template.instance(seed)


def named(name: str) -> list[Template]:
    """Return the template of this name, those of an application, or all."""
    found = [each for each in TEMPLATES.values() if name in ("all", each.name, each.application)]
    if not found:
        raise TaskFormatError(f"there is no template {name!r}; the templates are: {', '.join(TEMPLATES)}")
    return found
