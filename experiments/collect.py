"""A study in numbers and its picture, from its runs: `python experiments/collect.py STUDY [outputs] --write`.

Writes `results.csv` (a row a run and iteration), `summary.json` and `plot.png` into the folder of the study, and with
`--write` the measured block of its README. `--plot` draws the picture alone, from the files that are there.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))  # a script finds only what lies beside it

from experiments.studies import STUDIES  # noqa: E402
from experiments.study import ROOT, collect, plot  # noqa: E402


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", choices=STUDIES, help="a folder of experiments/")
    parser.add_argument("runs", nargs="?", type=Path, default=ROOT / "outputs", help="where the runs lie")
    parser.add_argument("--write", action="store_true", help="also rewrite the measured block of the README")
    parser.add_argument("--plot", action="store_true", help="only draw the picture")
    options = parser.parse_args(arguments)
    folder, study = HERE / options.study, STUDIES[options.study]
    if not options.plot:
        collect(folder, study, options.runs, write=options.write)
    plot(folder, study)


if __name__ == "__main__":
    main()
