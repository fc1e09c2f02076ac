"""OSWorld's own clients for `test_clients.py`; runs in the second environment, where `desktop-env` is.

    python clients.py PORT DIRECTORY      of the guest, and for what the set-up client downloads

Each line of standard input is a call, such as `["python", "get_file", "~/a.txt"]`; each line of standard output says
what came of it: `{"result": …, "errors": [what the client logged or raised, …]}`, bytes as `{"base64": …}`.
"""

import base64
import json
import logging
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "arpo" / "envs" / "osworld"))

from grader_main import AbsentPackages

# Of what the set-up client imports, `pydrive` is left out (for Google accounts), and what unused graders want.
sys.meta_path.append(AbsentPackages())

from desktop_env.controllers.python import PythonController  # noqa: E402
from desktop_env.controllers.setup import SetupController  # noqa: E402

RETRY_S = 0.1  # between the three attempts of a call; OSWorld's 5 s tell no more


class Errors(logging.Handler):
    """Keeps what the clients log as errors: most of their methods give no other sign."""

    def __init__(self):
        super().__init__(logging.ERROR)
        self.seen = []

    def emit(self, record):
        self.seen.append(record.getMessage())


def serve(port, directory, requests, replies):
    python, setup = PythonController("127.0.0.1", port), SetupController("127.0.0.1", port, cache_dir=directory)
    python.retry_interval = RETRY_S
    errors = Errors()
    logging.getLogger("desktopenv").addHandler(errors)
    for line in requests:
        controller, method, *arguments = json.loads(line)
        result, errors.seen = None, []
        try:
            result = getattr({"python": python, "setup": setup}[controller], method)(*arguments)
        except Exception as error:  # noqa: BLE001 - somebody else's code may raise anything
            errors.seen.append(f"{type(error).__name__}: {error}")
        print(json.dumps({"result": result, "errors": errors.seen}, default=as_text), file=replies, flush=True)


def as_text(content):
    return {"base64": base64.b64encode(content).decode()}


if __name__ == "__main__":
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # OSWorld's code prints
    serve(int(sys.argv[1]), sys.argv[2], sys.stdin, replies)
