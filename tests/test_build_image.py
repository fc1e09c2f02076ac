"""What the script that builds the image shows: its own lines, and the words of others only where they fail."""

import os
import re
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "docker" / "build_image.sh"
DOCKER = """#!/bin/sh
[ "$1" = build ] || exit 0
echo sha256:0123456789
echo "debconf: unable to initialize frontend: Dialog" >&2
exit $BUILD_STATUS
"""
PIP = """#!/bin/sh
echo "WARNING: Location 'https://mirror/simple' is ignored" >&2
exit $PIP_STATUS
"""


@pytest.fixture
def build(tmp_path):
    """Runs the script with a Docker and a pip that are fakes, and end with these exit statuses."""
    for name, text in (("docker", DOCKER), ("python3", PIP)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)

    def run(*, docker: int = 0, pip: int = 0) -> tuple[int, list[str], str]:
        environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "TMPDIR": str(tmp_path)}
        environment |= {"BUILD_STATUS": str(docker), "PIP_STATUS": str(pip)}
        command = ["bash", str(SCRIPT), "plain", "registry"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["docker", "python3"]  # and nothing is left
        return done.returncode, re.sub(r"\d+ s", "0 s", done.stdout).splitlines(), done.stderr

    return run


def test_a_build_that_goes_well_shows_the_lines_of_the_script_alone(build):
    lines = ["fetching PyAutoGUI", "building arpo/desktop:plain", "done"]
    assert build() == (0, [f"build_image.sh: {line} (0 s)" for line in lines], "")


@pytest.mark.parametrize(
    ("failing", "said"),
    [
        ("docker", "sha256:0123456789\ndebconf: unable to initialize frontend: Dialog\n"),
        ("pip", "WARNING: Location 'https://mirror/simple' is ignored\n"),
    ],
)
def test_where_a_step_fails_all_that_it_said_is_shown(build, failing, said):
    status, lines, words = build(**{failing: 3})
    assert status != 0
    assert not lines[-1].startswith("build_image.sh: done")
    assert words == said
