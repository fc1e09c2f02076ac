import io
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress

import psutil
import pytest
import torch
from PIL import Image
from transformers import AutoImageProcessor

from arpo.models.images import WORTH_WORKERS, ImageProcessor
from arpo.models.vision.tower import PatchSettings
from arpo.models.vision.workers import PatchWorkers
from tests.models.samples import screenshot

TRAINER = """
import sys, time
from arpo.models.vision.workers import PatchWorkers
from arpo.models.vision.tower import PatchSettings
workers = PatchWorkers(PatchSettings(14, 2, 3136, 15680), 1)
workers.submit(sys.stdin.buffer.read()).result()
print("ready", flush=True)
time.sleep(100)
"""


def own_workers(pid):
    found = []
    for child in psutil.Process(pid).children():
        with suppress(psutil.NoSuchProcess):  # has ended: of an earlier test, perhaps, and not collected yet
            found += [child] if "arpo.models.vision.workers" in child.cmdline() else []
    return found


@pytest.fixture(scope="module")
def workers():
    workers = PatchWorkers(PatchSettings(14, 2, 56 * 56, 112 * 140), 1)
    yield workers
    workers.close()


@pytest.mark.parametrize("size", [(112, 140), (160, 210), (30, 50), (333, 1000)])
def test_a_worker_makes_the_patches_of_the_checkpoints_own_processor(tiny_model, images, workers, size):
    key, png = screenshot(0, *size)
    packed = workers.submit(png).result(timeout=60)
    assert torch.equal(packed.pixels, images.packed(key, png).pixels)
    expected = AutoImageProcessor.from_pretrained(tiny_model)(images=Image.open(io.BytesIO(png)), return_tensors="pt")
    assert list(packed.grid) == expected["image_grid_thw"][0].tolist()


def test_a_broken_picture_is_given_back_and_a_dead_worker_replaced(workers):
    _, png = screenshot(0)
    assert workers.submit(png[:100]).result(timeout=60) is None
    assert workers.submit(png).result(timeout=60) is not None
    (process,) = own_workers(os.getpid())
    process.kill()
    assert workers.submit(png).result(timeout=60) is None
    assert workers.submit(png).result(timeout=60) is not None


@pytest.mark.long
def test_workers_are_used_where_they_are_worth_it_and_end_when_told(tiny_model):
    others_running = own_workers(os.getpid())
    images = ImageProcessor(tiny_model, cache_mb=0)
    small = dict(screenshot(seed) for seed in range(3))
    images.prepare(small, 1)
    assert own_workers(os.getpid()) == others_running
    for _ in range(2):
        for key, png in small.items():
            images.packed(key, png)
    assert images.decoded == 3  # the cache is as large as the update needs, whatever its usual size
    large = dict(screenshot(seed, 3840, 2160) for seed in range(4))
    assert WORTH_WORKERS <= 4 * 3840 * 2160
    broken = {"broken": next(iter(large.values()))[:2000]}
    images.prepare(large | broken, 1)
    others = ImageProcessor(tiny_model)
    for key, png in large.items():
        assert torch.equal(images.packed(key, png).pixels, others.packed(key, png).pixels)
    with pytest.raises(OSError, match="truncated"):
        images.packed("broken", broken["broken"])
    assert len(own_workers(os.getpid())) == len(others_running) + 1
    images.forget()
    images.close()
    assert own_workers(os.getpid()) == others_running
    images.packed(*screenshot(0))
    assert images.decoded == 3 + 4 + 1  # nothing was kept


def test_a_worker_ends_when_its_trainer_is_killed():
    command, pipe = [sys.executable, "-c", TRAINER], subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe) as trainer:
        trainer.stdin.write(screenshot(0)[1])
        trainer.stdin.close()
        assert trainer.stdout.readline() == b"ready\n"
        (worker,) = own_workers(trainer.pid)
        trainer.send_signal(signal.SIGKILL)
        trainer.wait()
    deadline = time.monotonic() + 30
    while worker.is_running() and worker.status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline, "the worker outlived its trainer"
        time.sleep(0.05)
