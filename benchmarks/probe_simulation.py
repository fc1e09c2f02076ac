"""The smallest update that the probe judges in one sync, simulated: by number of tokens and by kind of noise.

    python benchmarks/probe_simulation.py

For each, the smallest mean move of log-probabilities at which all of 1,000 engines that are one version old were
caught, and all of 1,000 fresh ones proven to be so. The noise is that of tests/inference/test_probe.py; a minute.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from arpo.inference.probe import freshness
from tests.inference.test_probe import LongNoise, Noise, start

MOVES = (0.006, 0.008, 0.01, 0.015, 0.02, 0.025, 0.03, 0.04, 0.05, 0.06, 0.08, 0.1)
TRIALS = 1000


def judges(kind: type[Noise], tokens: int, move: float) -> bool:
    noise = kind(0)
    for _ in range(TRIALS):
        old = start(tokens)
        new = noise.step(old, move)
        before = noise.probe(serves=old, trainer=old)
        fresh = freshness(noise.probe(serves=new, trainer=new), before)
        stale = freshness(noise.probe(serves=old, trainer=new), before)
        if not (fresh.judged and stale.judged and stale.evidence < 0 < fresh.evidence):
            return False
    return True


def main() -> None:
    print("tokens | " + " | ".join(kind.__name__ for kind in (Noise, LongNoise)))
    for tokens in (4, 8, 16, 32):
        smallest = [next(m for m in MOVES if judges(kind, tokens, m)) for kind in (Noise, LongNoise)]
        print(" | ".join(map(str, [start(tokens).size, *smallest])), flush=True)


if __name__ == "__main__":
    main()
