"""Sheets, and what a person would have made of them."""

from collections.abc import Callable, Sequence
from datetime import date, time
from pathlib import Path
from typing import Any

Rows = Sequence[Sequence[Any]]


def book(path: Path, *, change: Callable[[Any], object] = lambda _: None, **sheets: Rows) -> None:
    import openpyxl

    made = openpyxl.Workbook()
    made.remove(made.active)
    for name, rows in sheets.items():
        sheet = made.create_sheet(name)
        for row in rows:
            sheet.append(row)
    change(made.worksheets[0])
    made.save(path)


INCOME = (
    ("Month", "Revenue", "Expenses"),
    ("January", 5200, 3100),
    ("February", 4800, 2950),
    ("March", 6100, 3420),
    ("April", 5750, 3300),
)
SALES = (("Week", "Sales", "COGS"), (1, 900, 620), (2, 1150, 700), (3, 870, 655), (4, 1320, 810))
AMOUNTS = (("Record", "Amount"), ("rent", 840), ("books", 62), ("travel", 310), ("food", 455), ("phone", 29))
LOANS = (
    ("Loan", "Start", "Term in months"),
    ("A", date(2021, 3, 15), 12),
    ("B", date(2020, 11, 1), 30),
    ("C", date(2022, 7, 20), 6),
)
MATURE = ("Maturity Date", date(2022, 3, 15), date(2023, 5, 1), date(2023, 1, 20))
RATES = (("Rate", "Years", "Future value"), (0.05, 10, 1629), (0.02, 10, 1219))
SUMMARY = (("Investment Summary", None, None), ("High Interest Rate", None, "Low Interest Rate"))
QUARTERS = ("Zone", "Q1", "Q2", "Q3", "Q4", "Total")
ZONES = (("North", 12, 15, 11, 20), ("South", 9, 14, 16, 13), ("West", 21, 18, 17, 25))
TOTALS = tuple(sum(column) for column in list(zip(*ZONES, strict=True))[1:])
HOURS = (
    (),
    ("Monday", "Tuesday", "Total hours", "Hourly rate", "Earned"),
    (time(3, 10), time(4, 30), time(7, 40), 25),
)


def solved(start: Rows, *gold: Rows) -> Callable[..., None]:
    """Return a builder of a sheet, and of the sheets that it is to become, if it is compared with any."""

    def make(start_path: Path, *gold_path: Path) -> None:
        book(start_path, Sheet1=start)
        for path in gold_path:
            book(path, **{f"Sheet{number}": rows for number, rows in enumerate(gold, 1)})

    return make


def oversized_cells(start: Path, gold: Path) -> None:
    def zoom(sheet: Any) -> None:
        sheet.sheet_view.zoomScale = 350

    book(start, Sheet1=AMOUNTS, change=zoom)
    book(gold, Sheet1=AMOUNTS)


def frozen_headers(start: Path, gold: Path) -> None:
    def freeze(sheet: Any) -> None:
        sheet.freeze_panes = "C2"

    rows = [("Name", "Code", *range(2001, 2031)), *((f"Town {n}", n, *range(n, n + 30)) for n in range(1, 61))]
    book(start, Sheet1=rows)
    book(gold, Sheet1=rows, change=freeze)


def two_decimals(start: Path, gold: Path, gold_csv: Path) -> None:
    spent = (12.5, 7, 33.333, 101.0625)
    rows = [("item", "price", "spent"), *((f"item {n}", n * 1.5, each) for n, each in enumerate(spent, 1))]
    book(start, Sheet1=rows)
    book(gold, Sheet1=rows)
    lines = ["item,price,spent", *(f"{name},{price:g},{each:.2f}" for name, price, each in rows[1:])]
    gold_csv.write_text("\n".join(lines) + "\n")


def seven_digits(start: Path, gold: Path, gold_csv: Path) -> None:
    old = (42, 1307, 99810, 7)
    header = ("Customer", "Old ID", "New 7 Digit ID")
    book(start, Sheet1=[header, *((f"customer {n}", each) for n, each in enumerate(old, 1))])
    new = [(f"customer {n}", each, f"{each:07}") for n, each in enumerate(old, 1)]
    book(gold, Sheet1=[header, *new])
    gold_csv.write_text("".join(",".join(map(str, row)) + "\n" for row in (header, *new)))


GOODS = (("pen", 1.5, 4), ("desk", 120, 11), ("lamp", 33.456, 30))


def sheet_to_export(start: Path, gold_csv: Path) -> None:
    def with_formats(sheet: Any) -> None:
        sheet.column_dimensions["C"].width = 14
        for row in range(2, 5):
            sheet.cell(row, 2).number_format = "0.00"
            sheet.cell(row, 3).number_format = "yyyy-mm-dd"

    rows = [("Item", "Price", "Bought"), *((n, p, date(2023, 5, d)) for n, p, d in GOODS)]
    book(start, Sheet1=rows, change=with_formats)
    shown = ["Item,Price,Bought", *(f"{name},{price:.2f},2023-05-{day:02}" for name, price, day in GOODS)]
    gold_csv.write_text("\n".join(shown) + "\n")


BUILDERS = {
    "0bf05a7d-b28b-44d2-955a-50b41e24012a": seven_digits,
    "1273e544-688f-496b-8d89-3e0f40aa0606": solved(INCOME, INCOME, [[row[1]] for row in INCOME]),
    "1334ca3e-f9e3-4db8-9ca7-b4c653be7d17": oversized_cells,
    "1d17d234-e39d-4ed7-b46f-4417922a4e7c": solved(RATES, RATES, SUMMARY),
    "1e8df695-bd1b-45b3-b557-e7d599cf7597": solved(
        SALES, [(*SALES[0], "Profit"), *((*week, week[1] - week[2]) for week in SALES[1:])]
    ),
    "357ef137-7eeb-4c80-a3bb-0951f26a8aff": solved(HOURS),
    "3aaa4e37-dc91-482e-99af-132a612d40f3": sheet_to_export,
    "4172ea6e-6b77-4edb-a9cc-c0014bd1603b": solved(
        LOANS, [(*loan, end) for loan, end in zip(LOANS, MATURE, strict=True)]
    ),
    "4188d3a4-077d-46b7-9c86-23e1a036f6c1": frozen_headers,
    "51b11269-2ca8-4b2a-9163-f21758420e78": solved(
        AMOUNTS, [AMOUNTS[0], *sorted(AMOUNTS[1:], key=lambda record: record[1])]
    ),
    "6e99a1ad-07d2-4b66-a1ce-ece6d99c20a5": two_decimals,
    "f9584479-3d0d-4c79-affa-9ad7afdd8850": solved(
        [QUARTERS, *ZONES, ("Total",)],
        [QUARTERS, *((*zone, sum(zone[1:])) for zone in ZONES), ("Total", *TOTALS, sum(TOTALS))],
    ),
}
