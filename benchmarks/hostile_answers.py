"""What a guest or a browser that lies costs: this prints the table of docs/hostile.md.

    python benchmarks/hostile_answers.py

Every lie is met with a deadline of one second. Seconds are those of the call, MiB the most memory that it took. A call
that took longer than the deadline and a second is made again, up to twice: a busy machine adds its own.
"""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.envs.guest.hostile import ATTACKS, price_of

DEADLINE_S = 1.0
GRACE_S = 1.0
SHOWN = 60


def main() -> None:
    print("| what | result | seconds | MiB |\n|---|---|---:|---:|")
    for attack in ATTACKS:
        price = price_of(attack, DEADLINE_S)
        for _ in range(2):
            if price.seconds > DEADLINE_S + GRACE_S:
                price = price_of(attack, DEADLINE_S)
        result = " ".join(price.result.split()).replace("|", "/")
        shown = result if len(result) <= SHOWN else f"{result[:SHOWN]} …"
        print(f"| {price.what} | {shown} | {price.seconds:.2f} | {price.mebibytes:.1f} |", flush=True)
    print(f"\nMeasured at a load of {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores.")


if __name__ == "__main__":
    main()
