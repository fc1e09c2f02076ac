"""VS Code in an image, from a package that its user brings; the package here is a stand-in of Microsoft's."""

import os
import shutil
import subprocess
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from arpo.envs.desktop.env import DockerDesktop
from arpo.run.osworld import has_vs_code
from tests.envs.desktops import FULL, QUICK, docker, editor_task, needs_full

DOCKER = Path(__file__).parents[3] / "docker"
WINDOW = "Visual Studio Code"
COMMAND = f"""#!/bin/sh
exec xterm -title '{WINDOW}' -e sh -c 'echo "$@" >~/said; sleep 1000' sh "$@"
""".encode()
needs_dpkg = pytest.mark.skipif(shutil.which("dpkg-deb") is None, reason="there is no dpkg-deb to make a package by")


def package(folder: Path, files: dict[str, bytes]) -> Path:
    root = folder / "package"
    (root / "DEBIAN").mkdir(parents=True)
    control = "Package: code\nVersion: 1\nArchitecture: all\nMaintainer: me <me@example>\nDescription: a stand-in\n"
    (root / "DEBIAN" / "control").write_text(control)
    for path, content in files.items():
        place = root / "usr/share/code" / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content)
        place.chmod(0o755)
    subprocess.run(["dpkg-deb", "--build", root, folder / "code.deb"], check=True, capture_output=True)
    return folder / "code.deb"


def build_image(folder: Path, *words: str, **more) -> subprocess.CompletedProcess:
    command = ["bash", str(folder / "build_image.sh"), *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, **more)


@pytest.fixture
def build(tmp_path):
    tag = f"test-vscode-{os.getpid()}"

    def run(files: dict[str, bytes]) -> tuple[str, subprocess.CompletedProcess]:
        copy = shutil.copytree(DOCKER, tmp_path / "docker")
        script = (copy / "build_image.sh").read_text(encoding="utf-8")
        (copy / "build_image.sh").write_text(script.replace("arpo/desktop:$variant", f"arpo/desktop:{tag}"))
        package(tmp_path, files).rename(copy / "code.deb")
        return f"arpo/desktop:{tag}", build_image(copy, "vscode")

    yield run
    docker("image", "rm", "--force", f"arpo/desktop:{tag}")


def test_without_a_package_the_script_says_where_it_belongs_and_asks_no_engine(tmp_path):
    for name in ("build_image.sh", "progress.sh"):
        shutil.copy(DOCKER / name, tmp_path / name)
    done = build_image(tmp_path, "vscode", env={"PATH": "/usr/bin:/bin"})
    assert done.returncode == 2
    assert done.stderr.endswith(f"put Microsoft's package (.deb, x64) at {tmp_path}/code.deb\n")


@needs_dpkg
@pytest.mark.parametrize("program", [pytest.param(Path("/bin/true"), marks=needs_full)])
def test_the_command_of_the_package_runs_in_a_desktop_and_the_image_says_that_it_is_there(build, program):
    image, done = build({"code": program.read_bytes(), "bin/code": COMMAND})
    assert done.returncode == 0, done.stderr
    assert has_vs_code(image)
    assert not has_vs_code(FULL)
    with closing(DockerDesktop(**{**QUICK, "image": image})) as env:
        config = [{"type": "launch", "parameters": {"command": ["code", "/home/user/a b.txt"]}}]
        env.reset(replace(editor_task(), config={**editor_task().config, "config": config, "windows": [WINDOW]}))
        said = env.guest.execute("cat ~/said; ls -d ~/.config/Code/User", shell=True).output.splitlines()
        assert said[0].endswith("--force-renderer-accessibility /home/user/a b.txt")
        assert "--no-sandbox" in said[0]
        assert said[1] == "/home/user/.config/Code/User"


@needs_dpkg
@pytest.mark.parametrize(
    ("program", "said"),
    [
        pytest.param(b"hello", "not a dynamic executable", marks=needs_full),
        pytest.param(None, "has no /usr/share/code/bin/code, it is not VS Code", marks=needs_full),
    ],
)
def test_a_package_that_is_not_vs_code_makes_no_image_and_the_reason_is_said(build, program, said):
    image, done = build({"code": b""} if program is None else {"code": program, "bin/code": COMMAND})
    assert done.returncode in (1, 2)
    assert said in done.stderr
    assert not has_vs_code(image)


@pytest.mark.parametrize("content", [pytest.param(b"<!DOCTYPE html>", marks=needs_full)])
def test_a_page_in_the_place_of_a_package_is_said_by_the_name_of_the_file(tmp_path, content):
    for name in ("build_image.sh", "progress.sh", "vscode"):
        subprocess.run(["cp", "-r", DOCKER / name, tmp_path / name], check=True)
    (tmp_path / "code.deb").write_bytes(content)
    done = build_image(tmp_path, "vscode")
    assert done.returncode == 2
    assert done.stderr.endswith(f"{tmp_path}/code.deb is no whole Debian package\n")


def test_where_no_engine_answers_nothing_is_built(tmp_path):
    missing = {**os.environ, "DOCKER_HOST": f"unix://{tmp_path}/none.sock"}
    done = build_image(DOCKER, "plain", "mmdebstrap", env=missing)
    assert done.returncode != 0
    assert not done.stdout
