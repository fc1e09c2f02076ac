"""What an agent may leave of tasks of several applications, by template."""

import re

from arpo.envs.desktop.templates.documents import read_sheets
from tests.envs.desktop.templates.odf import ods, sheet
from tests.envs.desktop.templates.states.common import other_files, said


def result_into_a_note(instance):
    ((path, content),) = instance.files.items()
    line = content.decode()
    first, second = map(int, re.search(r"(\d+) times (\d+)", instance.instruction).groups())
    value = first * second
    yield "right", True, said(f"{line}{value}\n", path)
    yield "without an end", True, said(f"{line}{value}", path)
    yield "an empty line between", True, said(f"{line}\n{value}\n", path)
    yield "an empty line behind it", True, said(f"{line}{value}\n\n", path)
    yield "above", False, said(f"{value}\n{line}", path)
    yield "in the same line", False, said(f"{line[:-1]} {value}\n", path)
    yield "instead", False, said(f"{value}\n", path)
    yield "twice", False, said(f"{line}{value}\n{value}\n", path)
    yield "as it was", False, said(line, path)
    yield "the text changed", False, said(f"{line.upper()}{value}\n", path)


def delete_by_a_list(instance):
    rows = dict(line.split() for line in instance.files["list.txt"].decode().splitlines())
    largest = max(rows, key=lambda name: int(rows[name]))
    others = [f"{name}.dat" for name in rows if name != largest]
    right = f"rm things/{largest}.dat"
    yield "right", True, right
    yield "locked", False, f"chmod 0 things/{largest}.dat"
    yield "hidden", False, f"mv things/{largest}.dat things/.{largest}.dat"
    yield "the line of the list", False, f"sed -i /{largest}/d list.txt"
    yield "the others links", False, f"{right}; ln -sf /etc/passwd things/{others[0]}"
    yield "the others pipes", False, f"{right}; rm things/{others[0]}; mkfifo things/{others[0]}"
    for what, solved, how in other_files(right, "things", others):
        if what != "and another file emptied":  # they are
            yield what, solved, how


def _cells(instance):
    found = read_sheets(instance.files["Documents/table.ods"])["Sheet1"]
    return {place: cell.value for place, cell in found.items()}


def cell_into_a_note(instance):
    cells = _cells(instance)
    names = {str(value): place for place, value in cells.items() if place[0] == "A" and place != "A1"}
    name = next(each for each in names if re.search(rf"\b{each}\b", instance.instruction))
    number = int(cells[f"B{names[name][1:]}"])
    note = re.search(r"\w+-\d+\.txt", instance.instruction)[0]
    yield "right", True, said(str(number), note)
    yield "with an end", True, said(f"{number}\n", note)
    yield "with its name", False, said(f"{name} {number}", note)
    yield "another one", False, said(str(number + 1), note)
    yield "twice", False, said(f"{number}\n{number}", note)
    yield "elsewhere", False, said(str(number), f"Documents/{note}")
    yield "in the table alone", False, ods(sheet({**cells, "C1": number}))
    yield "and the table gone", False, f"{said(str(number), note)}; rm Documents/table.ods"
    yield "and the table emptied", False, f"{said(str(number), note)}; : > Documents/table.ods"
    yield "nothing", False, said("", note)


def note_into_a_sheet(instance):
    cells = _cells(instance)
    name, number = re.match(r"(\w+) called: the number is (\d+) now", instance.files["note.txt"].decode()).groups()
    place = next(f"B{at[1:]}" for at, value in cells.items() if value == name)
    right = {**cells, place: int(number)}
    yield "right", True, ods(sheet(right))
    yield "beside it", False, ods(sheet({**cells, f"C{place[1:]}": int(number)}))
    everywhere = {p: int(number) if p[0] == "B" and p != "B1" else v for p, v in cells.items()}
    yield "in all rows", False, ods(sheet(everywhere))
    yield "in another sheet", False, ods(sheet(cells), sheet(right, "Sheet2"))
    yield "as it was", False, ods(sheet(cells))
    yield "emptied", False, ": > Documents/table.ods"
