"""What a checker reads of a home directory: all of it, or nothing, and in any case without an end of the program."""

import pytest

from arpo.envs.desktop.templates.template import LARGEST, Home, Instance
from tests.envs.desktop.templates.local import LocalHome

FILES = {"work/a.txt": b"one", "work/b.txt": b"", "work/in/c.txt": b"three", "work/none/": b""}
TREE = {path.removeprefix("work/"): content for path, content in FILES.items()} | {"in/": b""}


@pytest.fixture
def home(tmp_path):
    instance = Instance("Do it.", (), "", lambda _: True, (), {}, FILES)
    home = LocalHome(tmp_path / "home", instance)
    yield home
    home.run("chmod -R u+rwX work")


def test_a_tree_has_the_contents_of_all_files_and_folders_end_in_a_slash(home):
    assert home.tree("work") == TREE
    assert home.tree("work/none") == {}
    assert home.tree("elsewhere") == {}


def test_a_link_and_a_pipe_are_no_files(home):
    home.run("ln -s a.txt work/link; mkfifo work/pipe; ln work/a.txt work/hard; ln -s in work/folder")
    found = home.tree("work")
    assert {path for path in found if path not in TREE} == {"link@", "pipe@", "folder@", "hard@"} or {
        path for path in found if path not in TREE
    } == {"link@", "pipe@", "folder@", "hard", "a.txt@"}  # which of the two names tar meets first


@pytest.mark.parametrize(
    "command", ["chmod 0 work/a.txt", "chmod 0 work/in", "chmod 300 work/none", "head -c 400000 /dev/zero > work/d"]
)
def test_of_a_tree_with_what_cannot_be_read_nothing_is(home, command):
    home.run(command)
    assert home.tree("work") == {}


def test_an_archive_is_read_as_a_tree(home):
    home.run("tar -czf packed.tar.gz work; head -c 50 packed.tar.gz > half.tar.gz; tar -cf plain.tar.gz work")
    assert home.unpacked("packed.tar.gz") == {"work/": b""} | {f"work/{path}": each for path, each in TREE.items()}
    assert [home.unpacked(f"{name}.tar.gz") for name in ("half", "plain", "none")] == [{}, {}, {}]


def test_what_does_not_end_reads_as_nothing(home):
    home.run("mkfifo pipe.tar.gz")
    assert home.output("cat pipe.tar.gz") == ""
    assert home.unpacked("pipe.tar.gz") == {}


def test_a_file_larger_than_those_of_tasks_reads_as_an_empty_one(home):
    (home.folder / "large").write_bytes(b"x" * (LARGEST + 1))
    (home.folder / "small").write_bytes(b"x" * LARGEST)
    assert home.content("large") == b""
    assert home.text("small") == "x" * LARGEST


def test_bytes_that_are_no_archive_read_as_nothing():
    class Odd:
        def execute(self, command, *, shell):
            return self

        output = ""

    odd = Odd()
    for odd.output in ("", "!", "abc", "Y29tcGxldGU=", "AAAA"):
        assert Home(odd).tree("work") == {}
