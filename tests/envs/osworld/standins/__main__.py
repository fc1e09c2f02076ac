"""`python -m tests.envs.osworld.standins CACHE ID…` makes the stand-ins of these tasks, or of all."""

import argparse
from pathlib import Path

from tests.envs.osworld.standins.building import build, tasks_with_standins

parser = argparse.ArgumentParser(prog="python -m tests.envs.osworld.standins", description="Make stand-ins.")
parser.add_argument("cache", type=Path, help="the folder that ARPO_OSWORLD_CACHE names")
parser.add_argument("ids", nargs="*", metavar="ID", help="how the ids of the tasks begin; all where none is given")
asked = parser.parse_args()
build(tasks_with_standins(asked.ids), asked.cache)
