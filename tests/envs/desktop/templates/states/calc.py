"""What an agent may leave of a table in Calc, by template."""

import re

from arpo.envs.desktop.templates.documents import read_sheets
from tests.envs.desktop.templates.odf import BOLD, ITALIC, cell, chart, ods, place_after, shapes, sheet, style

ITALIC_TOO = BOLD.replace("<style:text-properties", '<style:text-properties fo:font-style="italic"')


def table_of(instance):
    """The values of the sheet by cell, and its last row."""
    cells = read_sheets(instance.files["Documents/table.ods"])["Sheet1"]
    return {place: each.value for place, each in cells.items()}, len([place for place in cells if place[0] == "A"])


def written(cells, *more, **parts):
    return ods(sheet(cells), *more, **parts)


def damaged(cells, last):
    """What no task of a sheet asks for, beside the right cells."""
    yield "a name changed", False, written({**cells, "A2": "Nobody"})
    yield "another case of a name", False, written({**cells, "A2": str(cells["A2"]).upper()})
    yield "a number gone", False, written({place: value for place, value in cells.items() if place != f"B{last}"})
    yield "a number as a text", False, written({**cells, "B2": str(cells["B2"])})
    yield "something far away", False, written({**cells, "H20": 7})
    yield "one more sheet", False, written(cells, sheet({}, "Sheet2"))
    yield "another name of the sheet", False, ods(sheet(cells, "Sheet2"))


def total_a_column(instance):
    cells, last = table_of(instance)
    target = re.search(r"\bB\d+", instance.instruction)[0]
    total = sum(int(cells[f"B{row}"]) for row in range(2, last + 1))
    for formula in (f"of:=SUM([.B2:.B{last}])", f"of:=SUM([.$B$2:.$B${last}])", "of:=[.B2]+[.B3]", ""):
        yield f"right: {formula}", True, written({**cells, target: cell(total, formula=formula)})
    right = {**cells, target: total}
    yield (
        "with a format",
        True,
        written({**cells, target: cell(total, "ce1")}, styles=style("ce1", "table-cell", BOLD)),
    )
    yield "as a text", False, written({**cells, target: str(total)})
    yield "one too much", False, written({**cells, target: total + 1})
    yield (
        "an error",
        False,
        written(
            {
                **cells,
                target: '<table:table-cell office:value-type="string"><text:p>#NAME?</text:p></table:table-cell>',
            }
        ),
    )
    yield (
        "in every empty cell",
        False,
        written({**right, **{f"{letter}{row}": total for letter in "CD" for row in range(1, 12)}}),
    )
    comment = f"<office:annotation><text:p>{total}</text:p></office:annotation>"
    yield "in a comment", False, written({**cells, target: f"<table:table-cell>{comment}</table:table-cell>"})
    yield "in another sheet", False, written(cells, sheet({target: total}, "Sheet2"))
    yield from damaged(right, last)


def summarise_a_column(instance):
    cells, last = table_of(instance)
    numbers = [cells[f"B{row}"] for row in range(2, last + 1)]
    target = re.search(r"\b[DEF]\d", instance.instruction)[0]
    words = instance.instruction
    value = sum(numbers) / len(numbers) if "average" in words else max(numbers) if "largest" in words else min(numbers)
    right = {**cells, target: value}
    yield "right", True, written(right)
    yield "rounded", True, written({**cells, target: round(value, 2)})
    yield "its formula", True, written({**cells, target: cell(value, formula="of:=AVERAGE([.B2:.B99])")})
    yield "almost", False, written({**cells, target: value + 0.01})
    yield "below the table", False, written({**cells, f"B{last + 1}": value})
    yield "in every cell", False, written({**right, **{f"{c}{r}": value for c in "DEF" for r in range(2, 9)}})
    yield "as a text", False, written({**cells, target: str(value)})
    yield from damaged(right, last)


def multiply_columns(instance):
    cells, last = table_of(instance)
    title = re.search(r"\b(Total|Amount|Revenue|Cost)\b", instance.instruction)[0]
    products = {f"D{row}": cells[f"B{row}"] * cells[f"C{row}"] for row in range(2, last + 1)}
    right = {**cells, "D1": title, **products}
    formulas = {
        place: cell(value, formula=f"of:=PRODUCT([.B{place[1:]}];[.C{place[1:]}])")
        for place, value in products.items()
    }
    yield "values", True, written(right)
    yield "formulas", True, written({**right, **formulas})
    yield "no header", False, written({place: value for place, value in right.items() if place != "D1"})
    yield "another case", False, written({**right, "D1": title.lower()})
    yield "a space behind", False, written({**right, "D1": f"{title} "})
    yield (
        "the last is missing",
        False,
        written({place: value for place, value in right.items() if place != f"D{last}"}),
    )
    yield (
        "in the next column",
        False,
        written({**cells, **{f"E{place[1:]}": value for place, value in right.items() if place[0] == "D"}}),
    )
    yield "in the place of the count", False, written({**right, **{f"C{p[1:]}": v for p, v in products.items()}})
    yield "a total below", False, written({**right, f"D{last + 1}": sum(products.values())})
    yield from damaged(right, last)


def _rows(cells, last):
    return [(cells[f"A{row}"], cells[f"B{row}"]) for row in range(1, last + 1)]


def _cells(rows):
    return {f"{'AB'[column]}{row}": value for row, each in enumerate(rows, 1) for column, value in enumerate(each)}


def sort_by_name(instance):
    cells, last = table_of(instance)
    down = "Z to A" in instance.instruction
    head, *rows = _rows(cells, last)
    right = [head, *sorted(rows, reverse=down)]
    yield "right", True, written(_cells(right))
    yield "the other way", False, written(_cells([head, *sorted(rows, reverse=not down)]))
    yield (
        "the names alone",
        False,
        written(_cells([head, *((a, b) for (a, _), (_, b) in zip(sorted(rows, reverse=down), rows, strict=True))])),
    )
    for what, others in (
        ("by number", [head, *sorted(rows, key=lambda row: row[1], reverse=down)]),
        ("the header too", sorted([head, *rows], reverse=down)),
    ):
        if others != right:
            yield what, False, written(_cells(others))
    yield "beside it", False, written({**cells, **{place_after(p, 3): v for p, v in _cells(right).items()}})
    yield from damaged(_cells(right), last)


def append_a_record(instance):
    cells, last = table_of(instance)
    name = re.search(r"(?:for|record[^:]*:) (\w+)", instance.instruction)[1]
    number = int(re.search(r"\d+", instance.instruction)[0])
    row = last + 1
    right = {**cells, f"A{row}": name, f"B{row}": number}
    yield "right", True, written(right)
    yield "a row lower", False, written({**cells, f"A{row + 1}": name, f"B{row + 1}": number})
    yield "the number as a text", False, written({**right, f"B{row}": str(number)})
    yield "the name in lower case", False, written({**right, f"A{row}": name.lower()})
    yield "in one cell", False, written({**cells, f"A{row}": f"{name} {number}"})
    yield "twice", False, written({**right, f"A{row + 1}": name, f"B{row + 1}": number})
    yield "the name alone", False, written({**cells, f"A{row}": name})
    yield from damaged(right, last)


def delete_a_row(instance):
    cells, last = table_of(instance)
    name = re.search(r"row of (\w+)|(\w+) has left", instance.instruction)
    name = name[1] or name[2]
    rows = _rows(cells, last)
    number = [row[0] for row in rows].index(name)
    right = rows[:number] + rows[number + 1 :]
    yield "right", True, written(_cells(right))
    yield "emptied", False, written({p: v for p, v in cells.items() if p[1:] != str(number + 1)})
    yield "the name alone", False, written({p: v for p, v in cells.items() if p != f"A{number + 1}"})
    yield "nothing", False, written(cells)
    yield "one more", False, written(_cells(right[:-1]))
    yield "the header too", False, written(_cells(right[1:]))
    invisible = "".join(
        "<table:table-row"
        + (' table:visibility="collapse"' if index == number else "")
        + f">{cell(row[0])}{cell(row[1])}</table:table-row>"
        for index, row in enumerate(rows)
    )
    yield "hidden", False, ods(f'<table:table table:name="Sheet1">{invisible}</table:table>')
    yield from damaged(_cells(right), last - 1)


def make_the_header_bold(instance):
    cells, _ = table_of(instance)
    bold = "bold" in instance.instruction
    asked, other = (BOLD, ITALIC) if bold else (ITALIC, BOLD)
    styles = (
        style("ce1", "table-cell", asked, "Default")
        + style("ce2", "table-cell", other)
        + style("ce3", "table-cell", ITALIC_TOO)
        + style("ce4", "table-cell", "", "Heading_20_1")
        + style("T1", "text", asked)
    )
    common = (
        style("Default", "table-cell")
        + style("Heading", "table-cell", asked, "Default")
        + style("Heading_20_1", "table-cell", "", "Heading")
    )
    more = {"styles": styles, "common": common}

    def dressed(names, places=("A1", "B1")):
        return written({**cells, **{p: cell(cells[p], names) for p in places}}, **more)

    yield "right", True, dressed("ce1")
    yield (
        "the whole row",
        True,
        ods(sheet({**cells, **{p: cell(cells.get(p), "ce1") for p in ("A1", "B1", "C1", "D1")}}), **more),
    )
    yield "by a style with a name", True, dressed("Heading")
    yield "by a style that inherits it", True, dressed("ce4")
    spans = {
        p: f'<table:table-cell office:value-type="string"><text:p><text:span text:style-name="T1">{cells[p]}'
        "</text:span></text:p></table:table-cell>"
        for p in ("A1", "B1")
    }
    yield "letter by letter", True, written({**cells, **spans}, **more)
    half = (
        spans["A1"].replace("</text:span>", "</text:span>s").replace(f">{cells['A1']}<", f">{str(cells['A1'])[:-1]}<")
    )
    yield "half of a word", False, written({**cells, **spans, "A1": half}, **more)
    yield "one cell", False, dressed("ce1", ("A1",))
    yield "all of the table", False, dressed("ce1", tuple(cells))
    yield "the wrong style", False, dressed("ce2")
    yield "both styles", False, dressed("ce3")
    yield "the first column too", False, dressed("ce1", ("A1", "B1", "A2"))
    yield (
        "and the table in the other style",
        False,
        written(
            {**{p: cell(v, "ce2") for p, v in cells.items()}, **{p: cell(cells[p], "ce1") for p in ("A1", "B1")}},
            **more,
        ),
    )
    yield "without a table", False, ods(sheet({p: cell(cells[p], "ce1") for p in ("A1", "B1")}), **more)
    yield (
        "and another name",
        False,
        written({**cells, "A2": "Nobody", **{p: cell(cells[p], "ce1") for p in ("A1", "B1")}}, **more),
    )


def show_two_decimals(instance):
    cells, last = table_of(instance)
    percent = "percent" in instance.instruction

    def data(name, kind, digits, more="", tag="number"):
        return (
            f'<number:{kind} style:name="{name}"><number:{tag} number:decimal-places="{digits}" {more}'
            f' number:min-integer-digits="1"/></number:{kind}>'
        )

    styles = (
        data("N2", "number-style", 2)
        + data("N4", "number-style", 2, 'number:grouping="true"')
        + data("N1", "number-style", 1)
        + data("N10", "percentage-style", 0)
        + data("N11", "percentage-style", 2)
        + data("N60", "number-style", 2, 'number:min-exponent-digits="2"', "scientific-number")
        + "".join(style(f"ce{n}", "table-cell", more=f'style:data-style-name="N{n}"') for n in (2, 4, 1, 10, 11, 60))
    )
    column = [f"B{row}" for row in range(2, last + 1)]

    def dressed(number, places=column, changed=None):
        return written({**cells, **{p: cell((changed or cells)[p], f"ce{number}") for p in places}}, styles=styles)

    yield "two decimal places", not percent, dressed(2)
    yield "with thousands", not percent, dressed(4)
    yield "percentages with two", percent, dressed(11)
    yield "percentages without", percent, dressed(10)
    yield "the header too", True, dressed(11 if percent else 2, ["B1", *column])
    whole = '<table:table-column/><table:table-column table:default-cell-style-name="ce{}"/>'
    yield "the whole column", True, ods(sheet(cells, columns=whole.format(11 if percent else 2)), styles=styles)
    yield (
        "a style with a name",
        True,
        ods(
            sheet({**cells, **{p: cell(cells[p], "Nice") for p in column}}),
            common=data("N2", "number-style", 2)
            + data("N11", "percentage-style", 2)
            + style("Nice", "table-cell", more=f'style:data-style-name="N{11 if percent else 2}"'),
        ),
    )
    yield "one decimal place", False, dressed(1)
    yield "powers of ten", False, dressed(60)
    yield "the last is missing", False, dressed(11 if percent else 2, column[:-1])
    yield "rounded", False, dressed(11 if percent else 2, changed={p: round(cells[p], 1) + 1 for p in column})
    yield "typed as text", False, written({**cells, **{p: f"{cells[p]:.2f}" for p in column}})
    yield (
        "the names gone",
        False,
        ods(sheet({p: cell(v, f"ce{11 if percent else 2}") for p, v in cells.items() if p[0] == "B"}), styles=styles),
    )


def add_a_chart(instance):
    cells, last = table_of(instance)

    def charted(*objects, more=None, extra=()):
        return ods(sheet({**cells, **(more or {})}, shapes=shapes(len(objects))), *extra, objects=objects)

    yield "right", True, charted(chart(2, last))
    yield "lying bars", False, charted(chart(2, last, vertical="true"))
    yield "a line", False, charted(chart(2, last, "chart:line"))
    yield "a pie", False, charted(chart(2, last, "chart:circle"))
    yield "a row is missing", False, charted(chart(2, last - 1))
    yield "of the names", False, charted(chart(2, last, column="A"))
    yield "two charts", False, charted(chart(2, last), chart(2, last))
    yield "and a changed table", False, charted(chart(2, last), more={"B2": 5})
    yield "and one more number", False, charted(chart(2, last), more={"D2": 5})
    yield "and a sheet", False, charted(chart(2, last), extra=(sheet({}, "Sheet2"),))
    yield "none", False, written(cells)


def add_a_sheet(instance):
    cells, _ = table_of(instance)
    name = re.search(r"[A-Z]\w+ 20\d\d", instance.instruction)[0]
    yield "right", True, written(cells, sheet({}, name))
    yield "in front", False, ods(sheet({}, name), sheet(cells))
    yield "another case", False, written(cells, sheet({}, name.lower()))
    yield "a space behind", False, written(cells, sheet({}, f"{name} "))
    yield "two", False, written(cells, sheet({}, name), sheet({}, "Sheet3"))
    yield "a copy of the first", False, written(cells, sheet(cells, name))
    yield "the table moved there", False, ods(sheet({}), sheet(cells, name))
    yield "renamed", False, ods(sheet(cells, name))
    yield "the name in a cell", False, written({**cells, "D1": name}, sheet({}, "Sheet2"))
    yield "and a changed table", False, written({**cells, "A2": "Nobody"}, sheet({}, name))
    yield "and a number in the table", False, written({**cells, "D2": 5}, sheet({}, name))
