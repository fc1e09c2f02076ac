"""What an agent may leave of a table in Calc, by template; `mutants` are made of the first state that is right."""

import re

from arpo.envs.desktop.templates.documents import read_sheets
from tests.envs.desktop.templates.odf import BOLD, ITALIC, cell, chart, ods, shapes, sheet, style

ITALIC_TOO = BOLD.replace("<style:text-properties", '<style:text-properties fo:font-style="italic"')


def table_of(instance):
    cells = read_sheets(instance.files["Documents/table.ods"])["Sheet1"]
    return {place: each.value for place, each in cells.items()}, len([place for place in cells if place[0] == "A"])


def written(cells, *more, **parts):
    return ods(sheet(cells), *more, **parts)


def total_a_column(instance):
    cells, last = table_of(instance)
    target = re.search(r"\bB\d+", instance.instruction)[0]
    total = sum(int(cells[f"B{row}"]) for row in range(2, last + 1))
    for formula in ("", f"of:=SUM([.B2:.B{last}])", f"of:=SUM([.$B$2:.$B${last}])", "of:=[.B2]+[.B3]"):
        yield f"right: {formula}", True, written({**cells, target: cell(total, formula=formula)})
    dressed = {**cells, target: cell(total, "ce1")}
    yield "with a format", True, written(dressed, styles=style("ce1", "table-cell", BOLD))
    error = '<table:table-cell office:value-type="string"><text:p>#NAME?</text:p></table:table-cell>'
    yield "an error", False, written({**cells, target: error})
    comment = f"<office:annotation><text:p>{total}</text:p></office:annotation>"
    yield "in a comment", False, written({**cells, target: f"<table:table-cell>{comment}</table:table-cell>"})
    yield "in another sheet", False, written(cells, sheet({target: total}, "Sheet2"))


def summarise_a_column(instance):
    cells, last = table_of(instance)
    numbers = [cells[f"B{row}"] for row in range(2, last + 1)]
    target = re.search(r"\b[DEF]\d", instance.instruction)[0]
    words = instance.instruction
    value = sum(numbers) / len(numbers) if "average" in words else max(numbers) if "largest" in words else min(numbers)
    yield "right", True, written({**cells, target: value})
    yield "rounded", True, written({**cells, target: round(value, 2)})
    yield "its formula", True, written({**cells, target: cell(value, formula="of:=AVERAGE([.B2:.B99])")})
    yield "almost", False, written({**cells, target: value + 0.01})


def multiply_columns(instance):
    cells, last = table_of(instance)
    title = re.search(r"\b(Total|Amount|Revenue|Cost)\b", instance.instruction)[0]
    products = {f"D{row}": cells[f"B{row}"] * cells[f"C{row}"] for row in range(2, last + 1)}
    right = {**cells, "D1": title, **products}
    formula = "of:=PRODUCT([.B{0}];[.C{0}])".format
    formulas = {place: cell(value, formula=formula(place[1:])) for place, value in products.items()}
    yield "values", True, written(right)
    yield "formulas", True, written({**right, **formulas})


def _rows(cells, last):
    return [(cells[f"A{row}"], cells[f"B{row}"]) for row in range(1, last + 1)]


def _cells(rows):
    return {f"{'AB'[column]}{row}": value for row, each in enumerate(rows, 1) for column, value in enumerate(each)}


def sort_by_name(instance):
    cells, last = table_of(instance)
    down = "Z to A" in instance.instruction
    head, *rows = _rows(cells, last)
    right = [head, *sorted(rows, reverse=down)]
    names_alone = [(name, number) for (name, _), (_, number) in zip(right[1:], rows, strict=True)]
    yield "right", True, written(_cells(right))
    wrong = {"the other way": [head, *sorted(rows, reverse=not down)], "the names alone": [head, *names_alone]}
    for what, others in wrong.items():
        if others != right:
            yield what, False, written(_cells(others))


def append_a_record(instance):
    cells, last = table_of(instance)
    name = re.search(r"(?:for|record[^:]*:) (\w+)", instance.instruction)[1]
    number = int(re.search(r"\d+", instance.instruction)[0])
    row = last + 1
    right = {**cells, f"A{row}": name, f"B{row}": number}
    yield "right", True, written(right)
    yield "a row lower", False, written({**cells, f"A{row + 1}": name, f"B{row + 1}": number})


def delete_a_row(instance):
    cells, last = table_of(instance)
    name = re.search(r"row of (\w+)|(\w+) has left", instance.instruction)
    name = name[1] or name[2]
    rows = _rows(cells, last)
    number = [row[0] for row in rows].index(name)
    yield "right", True, written(_cells(rows[:number] + rows[number + 1 :]))
    yield "emptied", False, written({p: v for p, v in cells.items() if p[1:] != str(number + 1)})
    yield "nothing", False, written(cells)
    lines = [f"<table:table-row>{''.join(map(cell, row))}</table:table-row>" for row in rows]
    lines[number] = lines[number].replace("row>", 'row table:visibility="collapse">', 1)
    yield "hidden", False, ods(f'<table:table table:name="Sheet1">{"".join(lines)}</table:table>')


def make_the_header_bold(instance):
    cells, _ = table_of(instance)
    asked, other = (BOLD, ITALIC) if "bold" in instance.instruction else (ITALIC, BOLD)
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

    def dressed(named, places=("A1", "B1"), **others):
        chosen = {p: cell(cells.get(p), named) for p in places}
        return written({**cells, **others, **chosen}, styles=styles, common=common)

    def spanned(text):
        span = f'<text:p><text:span text:style-name="T1">{text}</text:span>'
        return f'<table:table-cell office:value-type="string">{span}</text:p></table:table-cell>'

    spans = {p: spanned(cells[p]) for p in ("A1", "B1")}
    half = spanned(cells["A1"][:-1]).replace("</text:p>", f"{cells['A1'][-1]}</text:p>")
    yield "right", True, dressed("ce1")
    yield "the whole row", True, dressed("ce1", ("A1", "B1", "C1", "D1"))
    yield "by a style with a name", True, dressed("Heading")
    yield "by a style that inherits it", True, dressed("ce4")
    yield "letter by letter", True, dressed("", (), **spans)
    yield "half of a word", False, dressed("", (), **{**spans, "A1": half})
    yield "all of the table", False, dressed("ce1", tuple(cells))
    yield "the wrong style", False, dressed("ce2")
    yield "both styles", False, dressed("ce3")
    table = {place: cell(value, "ce2") for place, value in cells.items()}
    yield "and the table in the other style", False, dressed("ce1", **table)


def show_two_decimals(instance):
    cells, last = table_of(instance)
    percent = "percent" in instance.instruction
    right = 11 if percent else 2

    def data(name, kind, digits, more="", tag="number"):
        number = f'<number:{tag} number:decimal-places="{digits}" {more} number:min-integer-digits="1"/>'
        return f'<number:{kind} style:name="{name}">{number}</number:{kind}>'

    formats = (
        data("N2", "number-style", 2)
        + data("N4", "number-style", 2, 'number:grouping="true"')
        + data("N1", "number-style", 1)
        + data("N10", "percentage-style", 0)
        + data("N11", "percentage-style", 2)
        + data("N60", "number-style", 2, 'number:min-exponent-digits="2"', "scientific-number")
    )
    named = [style(f"ce{n}", "table-cell", more=f'style:data-style-name="N{n}"') for n in (2, 4, 1, 10, 11, 60)]
    column = [f"B{row}" for row in range(2, last + 1)]

    def dressed(number, places=column):
        shown = {place: cell(cells[place], f"ce{number}") for place in places}
        return written({**cells, **shown}, styles=formats + "".join(named))

    yield "right", True, dressed(right)
    yield "two decimal places", not percent, dressed(2)
    yield "with thousands", not percent, dressed(4)
    yield "percentages with two", percent, dressed(11)
    yield "percentages without", percent, dressed(10)
    yield "the header too", True, dressed(right, ["B1", *column])
    whole = f'<table:table-column/><table:table-column table:default-cell-style-name="ce{right}"/>'
    yield "the whole column", True, ods(sheet(cells, columns=whole), styles=formats + "".join(named))
    nice = style("Nice", "table-cell", more=f'style:data-style-name="N{right}"')
    shown = {**cells, **{place: cell(cells[place], "Nice") for place in column}}
    yield "a style with a name", True, written(shown, common=formats + nice)
    yield "one decimal place", False, dressed(1)
    yield "powers of ten", False, dressed(60)
    yield "typed as text", False, written({**cells, **{place: f"{cells[place]:.2f}" for place in column}})


def add_a_chart(instance):
    cells, last = table_of(instance)

    def charted(*objects, extra=()):
        return ods(sheet(cells, shapes=shapes(len(objects))), *extra, objects=objects)

    yield "right", True, charted(chart(2, last))
    yield "lying bars", False, charted(chart(2, last, vertical="true"))
    yield "a line", False, charted(chart(2, last, "chart:line"))
    yield "a row is missing", False, charted(chart(2, last - 1))
    yield "two charts", False, charted(chart(2, last), chart(2, last))
    yield "none", False, written(cells)


def add_a_sheet(instance):
    cells, _ = table_of(instance)
    name = re.search(r"[A-Z]\w+ 20\d\d", instance.instruction)[0]
    yield "right", True, written(cells, sheet({}, name))
    yield "in front", False, ods(sheet({}, name), sheet(cells))
    yield "a space behind", False, written(cells, sheet({}, f"{name} "))
    yield "a copy of the first", False, written(cells, sheet(cells, name))
    yield "the name in a cell", False, written({**cells, "D1": name}, sheet({}, "Sheet2"))
