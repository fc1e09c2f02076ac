"""Tasks in LibreOffice Calc: formulas, sorting, formats, charts, sheets."""

from collections.abc import Callable, Collection, Mapping, Sequence

from arpo.envs.desktop.templates.documents import Cell, Chart, Rows, filled, read_charts, read_sheets, spreadsheet
from arpo.envs.desktop.templates.template import Draw, Instance, Script, document, press
from arpo.envs.desktop.templates.words import NOUNS, PEOPLE

SHEET = "Sheet1"
LOOKS = (("bold", "b", "fo:font-weight"), ("italic", "i", "fo:font-style"))
"""How a cell may look, the key that makes it so, and the property whose value that is."""
MEASURES = ("Sales", "Costs", "Units", "Orders", "Points", "Hours", "Visits", "Weight")

Cells = Mapping[str, Cell]


def total_a_column(draw: Draw) -> Instance:
    """Write the sum of a column below it."""
    rows, measure = _table(draw)
    last = len(rows)
    total = sum(int(str(row[1])) for row in rows[1:])
    ask = draw.phrase("Write the total of the column {} into {}.", "Add up the column {} in cell {}.")
    target = f"B{last + 1}"
    right = _enter(target, f"=SUM(B2:B{last})")
    return _instance(
        ask.format(measure, target),
        rows,
        right,
        {
            "a row is missing": _enter(target, f"=SUM(B2:B{last - 1})"),
            "in another cell": _enter(f"C{last + 1}", f"=SUM(B2:B{last})"),
        },
        free=[target],
        wanted=lambda cells: _number(cells, target) == total,
    )


def summarise_a_column(draw: Draw) -> Instance:
    """Write the average, the largest or the smallest number of a column into a cell."""
    rows, measure = _table(draw)
    numbers = [int(str(row[1])) for row in rows[1:]]
    (name, function, value), (_, wrong, _) = draw.sample(
        (
            ("average", "AVERAGE", sum(numbers) / len(numbers)),
            ("largest number", "MAX", max(numbers)),
            ("smallest number", "MIN", min(numbers)),
        ),
        2,
    )
    target = f"{draw.choice('DEF')}{draw.randrange(2, 9)}"
    ask = draw.phrase("Compute the {} of {} in cell {}.", "Cell {2} should show the {0} of the column {1}.")

    def entering(cell: str, which: str) -> Script:
        return _enter(cell, f"={which}(B2:B{len(rows)})")

    return _instance(
        ask.format(name, measure, target),
        rows,
        entering(target, function),
        {"another function": entering(target, wrong), "in another cell": entering(f"G{len(rows)}", function)},
        free=[target],
        wanted=lambda cells: abs(_number(cells, target) - value) < 0.005,
    )


def multiply_columns(draw: Draw) -> Instance:
    """Fill a column with the product of two others."""
    names = draw.sample(NOUNS, draw.randrange(3, 7))
    rows: Rows = [["Item", "Price", "Count"]]
    rows += [[name.title(), draw.randrange(2, 50), draw.randrange(2, 30)] for name in names]
    title, last = draw.choice(("Total", "Amount", "Revenue", "Cost")), len(rows)
    ask = draw.phrase(
        "Add a column {} in D: price times count, for every item.",
        "Fill column D, with the header {}, with Price times Count.",
    )

    def filling(formula: str, rows_from: int = 2) -> Script:
        return (
            *_enter("D1", title),
            *_go(f"D{rows_from}:D{last}"),
            f"type(content='{formula}')",
            "hotkey(key='alt enter')",
        )

    products = {f"D{row}": float(rows[row - 1][1] * rows[row - 1][2]) for row in range(2, last + 1)}  # type: ignore[operator]

    def done(cells: Cells) -> bool:
        return _text(cells, "D1") == title and all(_number(cells, cell) == number for cell, number in products.items())

    return _instance(
        ask.format(title),
        rows,
        filling("=B2*C2"),
        {"added": filling("=B2+C2"), "the first item is missing": filling("=B3*C3", 3)},
        free=["D1", *products],
        wanted=done,
    )


def sort_by_name(draw: Draw) -> Instance:
    """Sort the rows of a table by its first column."""
    rows, _ = _table(draw, shuffled=True)
    down = draw.random() < 0.5
    ask = draw.phrase("Sort the rows by {} {}.", "Put the table into the order of the column {}, {}.")

    def sorting(cells: str, entry: int) -> Script:
        return (*_go(cells), "hotkey(key='alt d')", *press("down", entry), "hotkey(key='enter')")

    whole = f"A2:B{len(rows)}"
    wanted = [rows[0], *sorted(rows[1:], key=lambda row: str(row[0]), reverse=down)]
    return _instance(
        ask.format(rows[0][0], "from Z to A" if down else "from A to Z"),
        rows,
        sorting(whole, 2 if down else 1),
        {"the wrong direction": sorting(whole, 1 if down else 2)},  # that the header is none, Calc sees by itself
        after=wanted,
    )


def append_a_record(draw: Draw) -> Instance:
    """Write a new row below a table."""
    rows, measure = _table(draw)
    name = next(person for person in draw.sample(PEOPLE, 20) if person not in {row[0] for row in rows})
    number, row = draw.randrange(10, 1000), len(rows) + 1
    ask = draw.phrase(
        "Add a row for {} with {} {} below the table.", "Enter a new record at the end of the table: {}, {} {}."
    )
    return _instance(
        ask.format(name, number, measure),
        rows,
        _enter(f"A{row}", f"{name}\\t{number}"),
        {
            "another number": _enter(f"A{row}", f"{name}\\t{number + 1}"),
            "over the last row": _enter(f"A{row - 1}", f"{name}\\t{number}"),
        },
        free=[f"A{row}", f"B{row}"],
        wanted=lambda cells: (_text(cells, f"A{row}"), _number(cells, f"B{row}")) == (name, number),
    )


def delete_a_row(draw: Draw) -> Instance:
    """Delete the row of a name, so that those below move up."""
    rows, _ = _table(draw)
    number = draw.randrange(2, len(rows) + 1)
    other = number + 1 if number < len(rows) else 2
    ask = draw.phrase("Delete the row of {}.", "{} has left. Remove the whole row from the table.")

    def deleting(row: int) -> Script:
        return (*_go(f"A{row}"), "hotkey(key='shift space')", "hotkey(key='ctrl -')")

    wanted = [row for row in rows if row != rows[number - 1]]
    return _instance(
        ask.format(rows[number - 1][0]),
        rows,
        deleting(number),
        {"another row": deleting(other), "emptied": (*_go(f"A{number}:B{number}"), "hotkey(key='delete')")},
        after=wanted,
    )


def make_the_header_bold(draw: Draw) -> Instance:
    """Show the first row in bold, or in italics."""
    rows, _ = _table(draw)
    (how, key, _), (_, wrong, _) = draw.sample(LOOKS, 2)
    ask = draw.phrase("Make the header of the table {}.", "Show the first row of the table in {}.")

    def styling(cells: str, letter: str) -> Script:
        return (*_go(cells), f"hotkey(key='ctrl {letter}')")

    def done(cells: Cells) -> bool:
        looks = {
            (place, look) for place, cell in cells.items() for look, _, name in LOOKS if cell.style.get(name) == look
        }
        return looks == {("A1", how), ("B1", how)}

    return _instance(
        ask.format(how),
        rows,
        styling("A1:B1", key),
        {"one cell of it": styling("A1", key), "another style": styling("A1:B1", wrong)},
        wanted=done,
    )


def show_two_decimals(draw: Draw) -> Instance:
    """Show the numbers of a column with two decimal places, or as percentages."""
    rows, measure = _table(draw)
    last = len(rows)
    rows = [rows[0], *([row[0], int(str(row[1])) / 1000] for row in rows[1:])]
    formats = (("with two decimal places", "1", "number-style"), ("as percentages", "5", "percentage-style"))
    (how, key, kind), (_, wrong, _) = draw.sample(formats, 2)
    ask = draw.phrase("Show the numbers of the column {} {}.", "Format the values of {} {}; do not change them.")

    def formatting(cells: str, digit: str) -> Script:
        return (*_go(cells), f"hotkey(key='ctrl shift {digit}')")

    def done(cells: Cells) -> bool:
        styles = [cells[f"B{row}"].style for row in range(2, last + 1)]
        return all(
            style.get("format") == kind
            and (kind == "percentage-style" or style.get("number:decimal-places") == "2")
            and "number:min-exponent-digits" not in style
            for style in styles
        )

    return _instance(
        ask.format(measure, how),
        rows,
        formatting(f"B2:B{last}", key),
        {
            "the last one is missing": formatting(f"B2:B{last - 1}", key),
            "another format": formatting(f"B2:B{last}", wrong),
        },
        wanted=done,
    )


def add_a_chart(draw: Draw) -> Instance:
    """Make a column chart of a table."""
    rows, measure = _table(draw)
    last = len(rows)
    ask = draw.phrase("Make a column chart of the table.", "Insert a chart with a column for the {} of each row.")

    def charting(cells: str) -> Script:
        menu = ("hotkey(key='alt i')", "hotkey(key='down')", "hotkey(key='enter')", "window('Chart Type')")
        return (*_go(cells), *menu, "hotkey(key='alt f')", "window('Calc')", "hotkey(key='esc')")

    wanted = [Chart("chart:bar", lies=False, series=[f"{SHEET}.B2:{SHEET}.B{last}"])]
    return _instance(
        ask.format(measure),
        rows,
        charting(f"A1:B{last}"),
        {"a row is missing": charting(f"A1:B{last - 1}"), "no chart": _go(f"A1:B{last}")},
        also=lambda content: read_charts(content) == wanted,
    )


def add_a_sheet(draw: Draw) -> Instance:
    """Add a sheet with a name behind the others."""
    rows, _ = _table(draw)
    name = f"{draw.choice(NOUNS).title()} {draw.randrange(2000, 2030)}"
    ask = draw.phrase("Add a sheet with the name {} at the end.", "The file needs a second sheet, called {}.")

    def adding(what: str) -> Script:
        menu = ("hotkey(key='alt s')", *press("down", 9), "hotkey(key='enter')", "window('Append Sheet')")
        return (*menu, "hotkey(key='ctrl a')", f"type(content='{what}\\n')", "window('Calc')")

    return _instance(
        ask.format(name),
        rows,
        adding(name),
        {"another name": adding(name[:-2]), "one more": (*adding(name), *adding("More"))},
        sheets=(SHEET, name),
    )


def _table(draw: Draw, *, shuffled: bool = False) -> tuple[Rows, str]:
    """Return rows of a name and a number each, below a header, and the header of the numbers."""
    names = draw.sample(PEOPLE, draw.randrange(4, 9))
    if shuffled:
        while names in (sorted(names), sorted(names, reverse=True)):
            draw.shuffle(names)
    measure = draw.choice(MEASURES)
    rows: Rows = [["Name", measure]]
    return rows + [[name, draw.randrange(10, 1000)] for name in names], measure


def _go(cells: str) -> Script:
    """Select cells by typing their name into the Name Box."""
    return (*press("ctrl shift t"), f"type(content='{cells}')", *press("enter"))


def _enter(cell: str, text: str) -> Script:
    return (*_go(cell), f"type(content='{text}\\n')")


def _number(cells: Cells, name: str) -> float:
    found = cells[name].value if name in cells else None
    return found if isinstance(found, float) else float("nan")


def _text(cells: Cells, name: str) -> str:
    return cells[name].shown if name in cells else ""


def _instance(  # noqa: PLR0913 - all that differs from task to task
    instruction: str,
    rows: Rows,
    solution: Script,
    near_misses: Mapping[str, Script],
    *,
    wanted: Callable[[Cells], bool] = lambda _: True,
    free: Collection[str] = (),
    after: Rows | None = None,
    sheets: Sequence[str] = (SHEET,),
    also: Callable[[bytes], bool] = lambda _: True,
) -> Instance:
    """Return the instance of a table, whose cells `wanted` judges and whose file `also`; see `document`.

    All cells but those that are `free` are to be as in the rows `after`, and no sheet but the first has any.
    """
    kept = {place: value for place, value in filled(after or rows).items() if place not in free}

    def done(content: bytes) -> bool:
        found = read_sheets(content)
        cells = found.get(SHEET, {})
        others = {place: cell.value for place, cell in cells.items() if place not in free}
        is_whole = list(found) == list(sheets) and others == kept and not any(found[name] for name in sheets[1:])
        return is_whole and wanted(cells) and also(content)

    return document("table.ods", spreadsheet({SHEET: rows}), instruction, done, solution, near_misses)
