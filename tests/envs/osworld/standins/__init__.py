"""Stand-ins for the files that OSWorld's tasks download: made here, with a right answer that a library wrote.

A builder makes the files of one task. It gets a path for each, in the order of `files_of(task)`: those that the task
starts from, then those that it is compared with. The libraries are those of the graders' environment, and are
imported where they are used.

The scripts of each task are beside it, in `APPLICATION/ID.json`; `python -m arpo tasks certify ID --scripts
tests/envs/osworld/standins` plays them with the files that `python -m tests.envs.osworld.standins CACHE ID` has made.
"""

from pathlib import Path

from tests.envs.osworld.standins import calc, gimp, impress, several, terminal, thunderbird, vlc, writer

ROOT = Path(__file__).parent
APPLICATIONS = calc, writer, impress, terminal, vlc, gimp, thunderbird, several
BUILDERS = {task: builder for application in APPLICATIONS for task, builder in application.BUILDERS.items()}
"""By the id of the task."""
