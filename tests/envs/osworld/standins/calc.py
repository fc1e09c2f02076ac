"""Sheets, and what a person would have made of them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

Rows = Sequence[Sequence[Any]]


def book(path: Path, **sheets: Rows) -> None:
    """Write sheets by their names."""
    import openpyxl

    made = openpyxl.Workbook()
    made.remove(made.active)
    for name, rows in sheets.items():
        sheet = made.create_sheet(name)
        for row in rows:
            sheet.append(row)
    made.save(path)


INCOME = (
    ("Month", "Revenue", "Expenses"),
    ("January", 5200, 3100),
    ("February", 4800, 2950),
    ("March", 6100, 3420),
    ("April", 5750, 3300),
)


def revenue_on_a_new_sheet(start: Path, gold: Path) -> None:
    book(start, Sheet1=INCOME)
    book(gold, Sheet1=INCOME, Sheet2=[[row[1]] for row in INCOME])


BUILDERS = {"1273e544-688f-496b-8d89-3e0f40aa0606": revenue_on_a_new_sheet}
