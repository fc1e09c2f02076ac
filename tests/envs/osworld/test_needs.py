"""What each of OSWorld's tasks needs: counts over the three lists, and single tasks that a rule could miss."""

from collections import Counter
from dataclasses import replace

import pytest

from arpo.envs.osworld.files import EMPTY_HISTORY_URL, files_of
from arpo.envs.osworld.needs import OFF_THE_WEB, ON_THE_WEB, Need, need_of, packages_of, tasks_by_need
from arpo.envs.osworld.tasks import read_tasks
from arpo.errors import ConfigError, TaskFormatError
from arpo.run.build import build, compose
from arpo.types import Task
from tests.envs.osworld.support import FILES, ids_of, needs_files


@pytest.fixture(scope="module")
def needs():
    return {task.id: need_of(task) for task in read_tasks(FILES, ids_of("osworld_369"))}


@needs_files
@pytest.mark.parametrize(
    ("name", "counts"),
    # nothing, files, a package, VS Code, live web, a grader, an account
    [
        ("osworld_369", [46, 206, 8, 28, 72, 1, 8]),
        ("osworld_128", [30, 62, 2, 18, 16, 0, 0]),
        ("osworld_subset32", [4, 17, 0, 4, 7, 0, 0]),
    ],
)
def test_the_tasks_of_a_list_by_what_they_need(needs, name, counts):
    found = Counter(needs[task] for ids in ids_of(name).values() for task in ids)
    assert [found[need] for need in Need] == counts


@needs_files
@pytest.mark.parametrize(
    ("begin", "need"),
    [
        ("2ad9387a", Need.NOTHING),
        ("44ee5668", Need.FILES),  # the empty history of Chrome
        ("3299584d", Need.PACKAGE),  # jq
        ("510f64c8", Need.VS_CODE),  # with an extension that it has downloaded
        ("e2b5e914", Need.WEB),  # with one of the marketplace
        ("42f4d1c7", Need.WEB),
        ("5990457f", Need.WEB),  # graded by what a page says now
        ("a74b607e", Need.PACKAGE),  # an extension of Chrome from the disk
        ("02ce9a50", Need.GRADER),
        ("0c825995", Need.ACCOUNT),
    ],
)
def test_a_task_needs_what_is_hardest_to_come_by(needs, begin, need):
    assert [found for task, found in needs.items() if task.startswith(begin)] == [need]


@needs_files
def test_every_task_that_a_rule_would_miss_is_one_of_osworld_s(needs):
    assert set(ON_THE_WEB) | set(OFF_THE_WEB) <= set(needs)
    assert {needs[task] for task in ON_THE_WEB} == {Need.WEB}
    assert Need.WEB not in {needs[task] for task in OFF_THE_WEB}


@needs_files
def test_the_packages_that_an_image_without_a_network_must_have():
    tasks = read_tasks(FILES, ids_of("osworld_369"))
    found = {name for task in tasks if need_of(task) is Need.PACKAGE for name in packages_of(task.config)}
    assert found == {"cssselect", "expect", "jq", "pysrt", "sysstat", "unzip", "xsel"}


def task(*steps, domain="chrome", related=(), **evaluator):
    record = {"config": list(steps), "related_apps": list(related), "evaluator": {"func": "exact_match", **evaluator}}
    return Task("mine", "Do it.", domain=domain, config=record)


def command(*words):
    return {"type": "execute", "parameters": {"command": list(words)}}


@pytest.mark.parametrize(
    ("mine", "need"),
    [
        (task(), Need.NOTHING),
        (task(command("bash", "-c", "sudo apt-get install -y -q jq")), Need.PACKAGE),
        (task(command("code", "--install-extension", "mine/a.vsix"), related=["vscode"]), Need.VS_CODE),
        (task(command("code", "--install-extension", "author.a"), related=["vscode"]), Need.WEB),
        (task(domain="multi_apps", related=["Chrome", "os"]), Need.WEB),
        (task(related=["chrome"]), Need.NOTHING),
    ],
)
def test_a_task_of_one_s_own_is_judged_by_the_same_rules(mine, need):
    assert need_of(mine) is need


def test_a_task_file_of_one_s_own_may_say_what_it_needs():
    tabs = {"type": "chrome_open_tabs", "parameters": {"urls_to_open": ["file:///home/user/a.html"]}}
    mine = task(tabs)
    assert need_of(mine) is Need.WEB
    assert need_of(replace(mine, config={**mine.config, "needs": "nothing"})) is Need.NOTHING
    account = task({"type": "googledrive", "parameters": {}})
    assert need_of(replace(account, config={**account.config, "needs": "nothing"})) is Need.ACCOUNT
    with pytest.raises(TaskFormatError, match="task mine: needs='the web' must be one of nothing, files, a package, "):
        need_of(replace(mine, config={**mine.config, "needs": "the web"}))


def test_the_files_of_a_task_are_those_of_its_steps_and_its_grader_each_once():
    first = {"type": "download", "parameters": {"files": [{"url": "http://a/1", "path": "home/1.txt"}]}}
    history = {"type": "update_browse_history", "parameters": {"history": []}}
    gold = [
        {"type": "cloud_file", "path": "http://a/2", "dest": "2.txt"},
        {"type": "cloud_file", "multi": True, "path": ["http://a/3", "http://a/4"], "dest": ["3.txt", "4.txt"]},
    ]
    mine = task(first, history, expected=gold, postconfig=[first])
    names = ["1.txt", "history_empty.sqlite", "2.txt", "3.txt", "4.txt"]
    assert [name for _, name in files_of(mine)] == names
    assert EMPTY_HISTORY_URL in dict(files_of(mine))
    for broken in ({"url": "http://a/1"}, {"path": "x"}, "http://a/1"):
        with pytest.raises(TaskFormatError, match="task mine: a file that it downloads has no address or no name"):
            files_of(task({"type": "download", "parameters": {"files": [broken]}}))


@needs_files
@pytest.mark.parametrize(
    ("name", "of", "count"),
    [
        ("osworld_subset32_containers", "osworld_subset32", 21),
        ("osworld_128_containers", "osworld_128", 94),
        ("osworld_subset32_vscode", "osworld_subset32", 25),
        ("osworld_128_vscode", "osworld_128", 112),
        ("osworld_369_containers", "osworld_369", 260),
    ],
)
def test_the_lists_for_containers_hold_what_a_container_can(needs, name, of, count):
    held = {Need.NOTHING, Need.FILES, Need.PACKAGE} | ({Need.VS_CODE} if "vscode" in name else set())
    cfg = compose("train", ["experiment=arpo_subset32_containers", f"tasks={name}", f"paths.osworld={FILES}"])
    found = [task.id for task in build(cfg.tasks.train)]
    assert found == [task for ids in ids_of(of).values() for task in ids if needs[task] in held]
    assert len(found) == count


@needs_files
def test_tasks_are_loaded_by_need_from_a_list_with_some_that_cannot_run(needs):
    loaded = {task.id for task in tasks_by_need(FILES, ids_of("osworld_369"), needs=["nothing"])}
    assert loaded == {name for name, need in needs.items() if need is Need.NOTHING}


@pytest.mark.parametrize("needs", [["files", "VSCode"], [], "files", None, [["files"]]])
def test_needs_that_there_are_not_are_refused(needs):
    with pytest.raises(ConfigError, match=r"needs=.* must be some of \[nothing, files, a package, "):
        tasks_by_need(FILES, {}, needs=needs)
