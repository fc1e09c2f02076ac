"""Tables on the terminal."""

import os
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from arpo.errors import quoted
from arpo.evaluation.scores import EvaluationResult

WIDEST = 400
"""Columns that a table may take where it goes to a file or to another program, which has no width of its own."""


def print_result(result: EvaluationResult) -> None:
    """Print the success rates of an evaluation, one row for each domain."""
    passes = ", ".join(f"pass@{k} {100 * value:.1f} %" for k, value in result.pass_at_ks.items())
    print_table(result.table(), title=result.name, caption=passes)


def print_table(rows: Sequence[Sequence[str]], *, title: str, caption: str) -> None:
    """Print rows of text, the header first."""
    header, *body = [[Text(quoted(word)) for word in row] for row in rows]
    table = Table(title=Text(quoted(title)), caption=Text(quoted(caption)))
    for name in header:
        table.add_column(name, overflow="fold")  # a name that is cut could be that of two things
    for row in body:
        table.add_row(*row)
    console = Console()
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = WIDEST
    console.print(table)
