"""Two ranks that have trained, of which the second leaves late: until somebody ends it, or a while after.

`python -m tests.run.late_rank ROOT` ends as the run does. The session lies below ROOT.
"""

import atexit
import os
import signal
import sys
import threading
from pathlib import Path

import lightning as L
from lightning.pytorch.demos.boring_classes import BoringModel

from arpo.host.session import Session
from arpo.run.train import LEAVING_S, leave_ranks

LATE_S = 3.0
"""How late it is, where nobody ends it."""
OBSERVER_S = 30.0
"""Lightning's observer looks every five seconds, and ends when all is well."""


def be_late() -> None:
    if signal.sigtimedwait({signal.SIGTERM}, LATE_S) is not None:
        os.kill(os.getpid(), signal.SIGKILL)


def main(root: Path) -> None:
    if os.environ.get("LOCAL_RANK") == "1":
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        atexit.register(be_late)
    session = Session.start(root)
    settings = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "max_steps": 1}
    trainer = L.Trainer(accelerator="cpu", devices=2, strategy="ddp", default_root_dir=root, **settings)
    trainer.fit(BoringModel())
    leave_ranks(trainer, LEAVING_S)
    session.close()
    if trainer.is_global_zero:
        for thread in threading.enumerate():
            if thread.name == "child-process-observer":
                thread.join(OBSERVER_S)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
