"""Screenshots decoded by processes of their own, while the training process does something else.

`python -m arpo.models.vision.workers` is such a process: PNGs come in by its standard input, patches go out by its
standard output. It ends when its input does, so also when the process that started it was killed.
"""

import json
import logging
import os
import pickle
import signal
import subprocess
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from queue import SimpleQueue
from typing import BinaryIO

import torch

import arpo
from arpo.models.vision.tower import PackedPatches, PatchSettings, decode

log = logging.getLogger(__name__)

PIPE_BYTES = 2**18
END_GRACE_S = 5.0

Prepared = Future[PackedPatches | None]
"""A screenshot on its way; None when no worker could decode it."""
Worker = subprocess.Popen[bytes]


class PatchWorkers:
    """Processes that decode and resize screenshots.

    Each is a fresh interpreter behind two pipes, started when it is first needed: nothing is forked from a process
    that holds a GPU and threads, and nothing of the trainer is imported again. A thread waits for each.
    """

    def __init__(self, settings: PatchSettings, count: int) -> None:
        self._settings = settings
        self._count = count
        self._threads = ThreadPoolExecutor(count, "patches")
        self._free: SimpleQueue[Worker | None] = SimpleQueue()
        for _ in range(count):
            self._free.put(None)

    def submit(self, png: bytes) -> Prepared:
        """Return the patches of a screenshot on their way; those asked for first come first."""
        return self._threads.submit(self._decoded, png)

    def close(self) -> None:
        """End the processes once they have done what was asked for."""
        self._threads.shutdown()
        for _ in range(self._count):
            _end(self._free.get())

    def _decoded(self, png: bytes) -> PackedPatches | None:
        """Have a free worker decode a screenshot; None where it dies, and the next gets another worker."""
        worker = self._free.get()
        try:
            worker = worker or self._start()
            assert worker.stdin is not None
            assert worker.stdout is not None
            pickle.dump(png, worker.stdin)
            worker.stdin.flush()
            answer = pickle.load(worker.stdout)  # of a process of ours
            return answer and PackedPatches(torch.from_numpy(answer[0]), answer[1])
        except Exception as error:  # noqa: BLE001 - whatever it read amiss: its next answer may be of another picture
            log.warning("a process that decodes screenshots has failed (%r): this one is decoded here", error)
            _end(worker)
            worker = None
            return None
        finally:
            self._free.put(worker)

    def _start(self) -> Worker:
        root = str(Path(arpo.__file__).parents[1])
        environment = {
            "PYTHONPATH": os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH")))),
            "OMP_NUM_THREADS": "1",
            "CUDA_VISIBLE_DEVICES": "",
        }
        return subprocess.Popen(
            [sys.executable, "-m", __name__, json.dumps(asdict(self._settings))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | environment,
            pipesize=PIPE_BYTES,
        )


def _end(worker: Worker | None) -> None:
    """Close a worker's pipes, which ends it."""
    if worker is None:
        return
    for pipe in (worker.stdin, worker.stdout):
        assert pipe is not None
        with suppress(BrokenPipeError):  # what a dead one has not read
            pipe.close()
    try:
        worker.wait(END_GRACE_S)
    except subprocess.TimeoutExpired:
        worker.kill()
        worker.wait()


def serve(source: BinaryIO, sink: BinaryIO, settings: PatchSettings) -> None:
    """Answer every PNG of the source with its patches and their grid, or with None, until it ends."""
    with suppress(EOFError):
        while True:
            packed = _packed(pickle.load(source), settings)
            pickle.dump(packed and (packed.pixels.numpy(), packed.grid), sink, protocol=5)
            sink.flush()


def _packed(png: bytes, settings: PatchSettings) -> PackedPatches | None:
    try:
        return decode(png, settings)
    except Exception:  # the caller decodes it again, and sees the error where it can be handled
        logging.exception("a screenshot of %d bytes cannot be decoded", len(png))
        return None


def main() -> None:
    """Serve the process that started this one."""
    for number in (signal.SIGINT, signal.SIGHUP):  # Ctrl-C, and a lost terminal, are for the one that started it
        signal.signal(number, signal.SIG_IGN)
    torch.set_num_threads(1)
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints must not get between the answers
    serve(sys.stdin.buffer, answers, PatchSettings(**json.loads(sys.argv[1])))


if __name__ == "__main__":
    main()
