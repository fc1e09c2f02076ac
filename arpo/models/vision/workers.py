"""Screenshots decoded by processes of their own, while the training process does something else."""

import json
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import asdict
from pathlib import Path
from queue import SimpleQueue

import torch

import arpo
from arpo.models.vision.patches import PackedPatches, PatchSettings
from arpo.models.vision.worker import ANSWER, LENGTH

log = logging.getLogger(__name__)

PIPE_BYTES = 2**18
END_GRACE_S = 5.0

Prepared = Future[PackedPatches | None]
"""A screenshot on its way; None when no worker could decode it."""


class PatchWorkers:
    """Processes that decode and resize screenshots.

    Each is a fresh interpreter behind two pipes: nothing is forked from a process that holds a GPU and threads, and a
    worker whose trainer is killed reads the end of its input and ends too.

    Args:
        settings: The sizes of the checkpoint.
        count: Number of processes.
    """

    def __init__(self, settings: PatchSettings, count: int) -> None:
        self._settings = settings
        self._jobs: SimpleQueue[tuple[bytes, Prepared] | None] = SimpleQueue()
        self._threads = [threading.Thread(target=self._work, name=f"patches-{n}", daemon=True) for n in range(count)]
        for thread in self._threads:
            thread.start()

    def submit(self, png: bytes) -> Prepared:
        """Return the patches of a screenshot on their way; those asked for first come first."""
        prepared: Prepared = Future()
        self._jobs.put((png, prepared))
        return prepared

    def close(self) -> None:
        """End the processes once they have done what was asked for."""
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        """Hand one worker its jobs; where it dies, its job is given back undone and the next gets another worker."""
        process: subprocess.Popen[bytes] | None = None
        for png, prepared in self._next_jobs():
            if not prepared.set_running_or_notify_cancel():
                continue
            try:
                process = process or self._start()
                prepared.set_result(_ask(process, png, self._settings))
            except OSError as error:
                log.warning("a process that decodes screenshots has died (%s): this one is decoded here", error)
                _end(process)
                process = None
                prepared.set_result(None)
        _end(process)

    def _next_jobs(self) -> Iterator[tuple[bytes, Prepared]]:
        while job := self._jobs.get():
            yield job

    def _start(self) -> subprocess.Popen[bytes]:
        root = str(Path(arpo.__file__).parents[1])
        environment = {
            "PYTHONPATH": os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH")))),
            "OMP_NUM_THREADS": "1",
            "CUDA_VISIBLE_DEVICES": "",
        }
        return subprocess.Popen(
            [sys.executable, "-m", "arpo.models.vision.worker", json.dumps(asdict(self._settings))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | environment,
            bufsize=0,
            pipesize=PIPE_BYTES,
        )


def _ask(process: subprocess.Popen[bytes], png: bytes, settings: PatchSettings) -> PackedPatches | None:
    """Return what a worker answers; None if it could not decode the PNG.

    Raises:
        OSError: If the worker has died.
    """
    assert process.stdin is not None
    for part in (LENGTH.pack(len(png)), png):
        view = memoryview(part)
        while view:
            view = view[process.stdin.write(view) :]
    frames, rows, columns = ANSWER.unpack(_receive(process, ANSWER.size))
    if not frames:
        return None
    shape = (frames * rows * columns, 3, settings.patch_size, settings.patch_size)
    pixels = _receive(process, shape[0] * 3 * settings.patch_size**2)
    return PackedPatches(torch.frombuffer(pixels, dtype=torch.uint8).view(shape), (frames, rows, columns))


def _receive(process: subprocess.Popen[bytes], size: int) -> bytearray:
    assert process.stdout is not None
    data = bytearray(size)
    view = memoryview(data)
    while view:
        count = process.stdout.readinto(view)  # type: ignore[attr-defined]  # unbuffered: a FileIO
        if not count:
            raise BrokenPipeError(f"its output ended {len(view)} bytes early, exit code {process.poll()}")
        view = view[count:]
    return data


def _end(process: subprocess.Popen[bytes] | None) -> None:
    """Close a worker's pipes, which ends it."""
    if process is None:
        return
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.close()
    process.stdout.close()
    try:
        process.wait(END_GRACE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
