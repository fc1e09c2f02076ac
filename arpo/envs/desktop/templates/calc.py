"""Tasks in LibreOffice Calc: formulas, sorting, formats, charts, sheets."""

from collections.abc import Callable, Collection, Mapping

from arpo.envs.desktop.templates.documents import Cell, Chart, Sheets, Value, read_charts, read_sheets, spreadsheet
from arpo.envs.desktop.templates.template import Draw, Home, Instance, templates_of
from arpo.envs.desktop.templates.words import NOUNS, PEOPLE, distinct

SHEET = "Sheet1"
SAVE = "hotkey(key='ctrl s')"
LOOKS = (("bold", "b", "fo:font-weight"), ("italic", "i", "fo:font-style"))
"""How a cell may look, the key that makes it so, and the property whose value that is."""
MEASURES = ("Sales", "Costs", "Units", "Orders", "Points", "Hours", "Visits", "Weight")

Cells = Mapping[str, Cell]


def total_a_column(draw: Draw) -> Instance:
    """Write the sum of a column below it."""
    rows, measure = _table(draw)
    last = len(rows)
    total = sum(int(str(row[1])) for row in rows[1:])
    ask = draw.choice(("Write the total of the column {} into {}.", "Add up the column {} in cell {}."))

    def entering(cell: str, formula: str) -> tuple[str, ...]:
        return (*_go(cell), f"type(content='{formula}\\n')")

    target = f"B{last + 1}"
    right = entering(target, f"=SUM(B2:B{last})")
    return _instance(
        ask.format(measure, target),
        rows,
        lambda cells: _number(cells, target) == total,
        right,
        {
            "a row is missing": entering(target, f"=SUM(B2:B{last - 1})"),
            "in another cell": entering(f"C{last + 1}", f"=SUM(B2:B{last})"),
        },
        free=[target],
    )


def summarise_a_column(draw: Draw) -> Instance:
    """Write the average, the largest or the smallest number of a column into a cell."""
    rows, measure = _table(draw)
    numbers = [int(str(row[1])) for row in rows[1:]]
    (name, function, value), (_, wrong, _) = distinct(
        draw,
        (
            ("average", "AVERAGE", sum(numbers) / len(numbers)),
            ("largest number", "MAX", max(numbers)),
            ("smallest number", "MIN", min(numbers)),
        ),
        2,
    )
    target = f"{draw.choice('DEF')}{draw.randrange(2, 9)}"
    ask = draw.choice(("Compute the {} of {} in cell {}.", "Cell {2} should show the {0} of the column {1}."))

    def entering(cell: str, which: str) -> tuple[str, ...]:
        return (*_go(cell), f"type(content='={which}(B2:B{len(rows)})\\n')")

    return _instance(
        ask.format(name, measure, target),
        rows,
        lambda cells: abs(_number(cells, target) - value) < 0.005,
        entering(target, function),
        {"another function": entering(target, wrong), "in another cell": entering(f"G{len(rows)}", function)},
        free=[target],
    )


def multiply_columns(draw: Draw) -> Instance:
    """Fill a column with the product of two others."""
    names = distinct(draw, NOUNS, draw.randrange(3, 7))
    rows: list[list[Value]] = [["Item", "Price", "Count"]]
    rows += [[name.title(), draw.randrange(2, 50), draw.randrange(2, 30)] for name in names]
    title, last = draw.choice(("Total", "Amount", "Revenue", "Cost")), len(rows)
    ask = draw.choice(
        (
            "Add a column {} in D: price times count, for every item.",
            "Fill column D, with the header {}, with Price times Count.",
        )
    )

    def filling(formula: str, rows_from: int = 2) -> tuple[str, ...]:
        header = (*_go("D1"), f"type(content='{title}\\n')")
        return (*header, *_go(f"D{rows_from}:D{last}"), f"type(content='{formula}')", "hotkey(key='alt enter')")

    products = {f"D{row}": float(rows[row - 1][1] * rows[row - 1][2]) for row in range(2, last + 1)}  # type: ignore[operator]

    def done(cells: Cells) -> bool:
        return _text(cells, "D1") == title and all(_number(cells, cell) == number for cell, number in products.items())

    return _instance(
        ask.format(title),
        rows,
        done,
        filling("=B2*C2"),
        {"added": filling("=B2+C2"), "the first item is missing": filling("=B3*C3", 3)},
        free=["D1", *products],
    )


def sort_by_name(draw: Draw) -> Instance:
    """Sort the rows of a table by its first column."""
    rows, _ = _table(draw, shuffled=True)
    down = draw.random() < 0.5
    ask = draw.choice(("Sort the rows by {} {}.", "Put the table into the order of the column {}, {}."))

    def sorting(cells: str, entry: int) -> tuple[str, ...]:
        return (*_go(cells), "hotkey(key='alt d')", *["hotkey(key='down')"] * entry, "hotkey(key='enter')")

    whole = f"A2:B{len(rows)}"
    wanted = [rows[0], *sorted(rows[1:], key=lambda row: str(row[0]), reverse=down)]
    return _instance(
        ask.format(rows[0][0], "from Z to A" if down else "from A to Z"),
        rows,
        lambda _: True,
        sorting(whole, 2 if down else 1),
        {"the wrong direction": sorting(whole, 1 if down else 2)},  # that the header is none, Calc sees by itself
        after=wanted,
    )


def append_a_record(draw: Draw) -> Instance:
    """Write a new row below a table."""
    rows, measure = _table(draw)
    name = next(person for person in distinct(draw, PEOPLE, 20) if person not in {row[0] for row in rows})
    number, row = draw.randrange(10, 1000), len(rows) + 1
    ask = draw.choice(
        ("Add a row for {} with {} {} below the table.", "Enter a new record at the end of the table: {}, {} {}.")
    )

    def entering(what: int, where: int) -> tuple[str, ...]:
        return (*_go(f"A{where}"), f"type(content='{name}\\t{what}\\n')")

    return _instance(
        ask.format(name, number, measure),
        rows,
        lambda cells: (_text(cells, f"A{row}"), _number(cells, f"B{row}")) == (name, number),
        entering(number, row),
        {"another number": entering(number + 1, row), "over the last row": entering(number, row - 1)},
        free=[f"A{row}", f"B{row}"],
    )


def delete_a_row(draw: Draw) -> Instance:
    """Delete the row of a name, so that those below move up."""
    rows, _ = _table(draw)
    number = draw.randrange(2, len(rows) + 1)
    other = number + 1 if number < len(rows) else 2
    ask = draw.choice(("Delete the row of {}.", "{} has left. Remove the whole row from the table."))

    def deleting(row: int) -> tuple[str, ...]:
        return (*_go(f"A{row}"), "hotkey(key='shift space')", "hotkey(key='ctrl -')")

    wanted = [row for row in rows if row != rows[number - 1]]
    return _instance(
        ask.format(rows[number - 1][0]),
        rows,
        lambda _: True,
        deleting(number),
        {"another row": deleting(other), "emptied": (*_go(f"A{number}:B{number}"), "hotkey(key='delete')")},
        after=wanted,
    )


def make_the_header_bold(draw: Draw) -> Instance:
    """Show the first row in bold, or in italics."""
    rows, _ = _table(draw)
    (how, key, _), (_, wrong, _) = distinct(draw, LOOKS, 2)
    ask = draw.choice(("Make the header of the table {}.", "Show the first row of the table in {}."))

    def styling(cells: str, letter: str) -> tuple[str, ...]:
        return (*_go(cells), f"hotkey(key='ctrl {letter}')")

    def done(cells: Cells) -> bool:
        looks = {
            (place, look) for place, cell in cells.items() for look, _, name in LOOKS if cell.style.get(name) == look
        }
        return looks == {("A1", how), ("B1", how)}

    return _instance(
        ask.format(how),
        rows,
        done,
        styling("A1:B1", key),
        {"one cell of it": styling("A1", key), "another style": styling("A1:B1", wrong)},
    )


def show_two_decimals(draw: Draw) -> Instance:
    """Show the numbers of a column with two decimal places, or as percentages."""
    rows, measure = _table(draw)
    last = len(rows)
    rows = [rows[0], *([row[0], int(str(row[1])) / 1000] for row in rows[1:])]
    (how, key, kind), (_, wrong, _) = distinct(
        draw, (("with two decimal places", "1", "number-style"), ("as percentages", "5", "percentage-style")), 2
    )
    ask = draw.choice(("Show the numbers of the column {} {}.", "Format the values of {} {}; do not change them."))

    def formatting(cells: str, digit: str) -> tuple[str, ...]:
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
        done,
        formatting(f"B2:B{last}", key),
        {
            "the last one is missing": formatting(f"B2:B{last - 1}", key),
            "another format": formatting(f"B2:B{last}", wrong),
        },
    )


def add_a_chart(draw: Draw) -> Instance:
    """Make a column chart of a table."""
    rows, measure = _table(draw)
    last = len(rows)
    ask = draw.choice(("Make a column chart of the table.", "Insert a chart with a column for the {} of each row."))

    def charting(cells: str) -> tuple[str, ...]:
        menu = ("hotkey(key='alt i')", "hotkey(key='down')", "hotkey(key='enter')", "window('Chart Type')")
        return (*_go(cells), *menu, "hotkey(key='alt f')", "window('Calc')", "hotkey(key='esc')")

    wanted = [Chart("chart:bar", lies=False, series=[f"{SHEET}.B2:{SHEET}.B{last}"])]
    return _instance(
        ask.format(measure),
        rows,
        lambda _: True,
        charting(f"A1:B{last}"),
        {"a row is missing": charting(f"A1:B{last - 1}"), "no chart": _go(f"A1:B{last}")},
        also=lambda content: read_charts(content) == wanted,
    )


def add_a_sheet(draw: Draw) -> Instance:
    """Add a sheet with a name behind the others."""
    rows, _ = _table(draw)
    name = f"{draw.choice(NOUNS).title()} {draw.randrange(2000, 2030)}"
    ask = draw.choice(("Add a sheet with the name {} at the end.", "The file needs a second sheet, called {}."))

    def adding(what: str) -> tuple[str, ...]:
        menu = ("hotkey(key='alt s')", *["hotkey(key='down')"] * 9, "hotkey(key='enter')", "window('Append Sheet')")
        return (*menu, "hotkey(key='ctrl a')", f"type(content='{what}\\n')", "window('Calc')")

    return _instance(
        ask.format(name),
        rows,
        lambda _: True,
        adding(name),
        {"another name": adding(name[:-2]), "one more": (*adding(name), *adding("More"))},
        sheets=[SHEET, name],
    )


TEMPLATES = templates_of(
    __name__,
    (
        total_a_column,
        summarise_a_column,
        multiply_columns,
        sort_by_name,
        append_a_record,
        delete_a_row,
        make_the_header_bold,
        show_two_decimals,
        add_a_chart,
        add_a_sheet,
    ),
)


def _table(draw: Draw, *, shuffled: bool = False) -> tuple[list[list[Value]], str]:
    """Return rows of a name and a number each, below a header, and the header of the numbers."""
    names = distinct(draw, PEOPLE, draw.randrange(4, 9))
    if shuffled:
        while names in (sorted(names), sorted(names, reverse=True)):
            draw.shuffle(names)
    measure = draw.choice(MEASURES)
    rows: list[list[Value]] = [["Name", measure]]
    return rows + [[name, draw.randrange(10, 1000)] for name in names], measure


def _filled(rows: list[list[Value]]) -> dict[str, Value]:
    """Return the values of a table by the names of its cells."""
    return {
        f"{'ABCD'[column]}{row}": value for row, values in enumerate(rows, 1) for column, value in enumerate(values)
    }


def _go(cells: str) -> tuple[str, ...]:
    """Select cells by typing their name into the Name Box."""
    return ("hotkey(key='ctrl shift t')", f"type(content='{cells}')", "hotkey(key='enter')")


def _number(cells: Cells, name: str) -> float:
    found = cells[name].value if name in cells else None
    return found if isinstance(found, float) else float("nan")


def _text(cells: Cells, name: str) -> str:
    return cells[name].shown if name in cells else ""


def _instance(  # noqa: PLR0913 - all that differs from task to task
    instruction: str,
    rows: list[list[Value]],
    wanted: Callable[[Cells], bool],
    solution: tuple[str, ...],
    near_misses: Mapping[str, tuple[str, ...]],
    *,
    free: Collection[str] = (),
    after: list[list[Value]] | None = None,
    sheets: list[str] | None = None,
    also: Callable[[bytes], bool] = lambda _: True,
) -> Instance:
    """Return the instance of a table that is on the screen; near-misses are saved, and one more is not.

    Args:
        instruction: Without the sentence that asks for saving.
        rows: What is in the sheet.
        wanted: Judges the cells of the sheet.
        solution: Without saving.
        near_misses: Without saving.
        free: The cells that the task is about.
        after: What is to be in all others; `rows` if omitted.
        sheets: The names of all sheets, of which only the first is not empty; that one alone if omitted.
        also: Judges the file.
    """
    path = "Documents/table.ods"
    kept = {place: value for place, value in _filled(after or rows).items() if place not in free}
    before: Sheets = {SHEET: rows}

    def done(home: Home) -> bool:
        content = home.content(path)
        found = read_sheets(content)
        cells = found.get(SHEET, {})
        others = {place: cell.value for place, cell in cells.items() if place not in free}
        rest = [name for name, more in found.items() if more and name != SHEET]
        is_whole = list(found) == (sheets or [SHEET]) and others == kept and not rest
        return is_whole and wanted(cells) and also(content)

    return Instance(
        f"{instruction} Save the file.",
        launch=("soffice", "--norestore", f"~/{path}"),
        window="table.ods",
        done=done,
        solution=(*solution, SAVE),
        near_misses={**{name: (*script, SAVE) for name, script in near_misses.items()}, "not saved": solution},
        files={path: spreadsheet(before)},
    )
