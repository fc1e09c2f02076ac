"""The process of a `PatchWorkers`: PNGs in by its standard input, patches out by its standard output.

It ends when its input does, so also when the process that started it was killed.
"""

import json
import logging
import os
import signal
import struct
import sys
from typing import BinaryIO

import torch

from arpo.models.vision.patches import PackedPatches, PatchSettings, decode

LENGTH = struct.Struct("<q")
"""Bytes of the PNG that follows."""
ANSWER = struct.Struct("<qqq")
"""Frames, rows and columns of the patches that follow; zeros, and nothing follows, if the PNG could not be decoded."""


def serve(source: BinaryIO, sink: BinaryIO, settings: PatchSettings) -> None:
    """Answer every PNG of the source, until it ends."""
    while header := source.read(LENGTH.size):
        packed = _decoded(source.read(LENGTH.unpack(header)[0]), settings)
        sink.write(ANSWER.pack(*(packed.grid if packed else (0, 0, 0))))
        if packed:
            sink.write(packed.pixels.numpy().data)
        sink.flush()


def _decoded(png: bytes, settings: PatchSettings) -> PackedPatches | None:
    try:
        return decode(png, settings)
    except Exception:  # whoever asked decodes it again, and sees the error where it can be handled
        logging.exception("a screenshot of %d bytes cannot be decoded", len(png))
        return None


def main() -> None:
    """Serve whoever started this process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the one that started it
    torch.set_num_threads(1)
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints must not get between the answers
    serve(sys.stdin.buffer, answers, PatchSettings(**json.loads(sys.argv[1])))


if __name__ == "__main__":
    main()
