"""Tasks that need several applications: what one shows is written in another."""

from collections.abc import Mapping

from arpo.envs.desktop.templates.documents import Rows, Value, filled, read_sheets, spreadsheet
from arpo.envs.desktop.templates.template import SAVE, Draw, Home, Instance, Script, press
from arpo.envs.desktop.templates.words import NOUNS, PEOPLE, sentence


def result_into_a_note(draw: Draw) -> Instance:
    """Compute with the calculator and write the result at the end of a note."""
    first, second, note = draw.randrange(12, 100), draw.randrange(12, 100), f"{draw.choice(NOUNS)}.txt"
    line, value = sentence(draw), first * second
    ask = draw.phrase(
        "Compute {} times {} and write the result below the text in {}, which is in the home folder. Save it.",
        "Add a line with the result of {} times {} to the file {} in the home folder and save it.",
    )
    computing = (f"type(content='{first}*{second}')", "hotkey(key='enter')")

    def noting(number: int, saved: str = SAVE) -> Script:
        return (*computing, *_open(note), *press("ctrl end"), f"type(content='{number}\\n')", saved)

    return Instance(
        ask.format(first, second, note),
        launch=("galculator",),
        window="galculator",
        done=lambda home: [each for each in home.text(note).split("\n") if each] == [line, str(value)],
        solution=noting(value),
        near_misses={"another number": noting(value + 10), "not saved": noting(value, "wait()")},
        files={note: f"{line}\n".encode()},
    )


def delete_by_a_list(draw: Draw) -> Instance:
    """Find the file that a note names, and delete it."""
    names = draw.sample(NOUNS, draw.randrange(4, 7))
    name, other = names[:2]
    sizes = {each: draw.randrange(10, 60) for each in names}
    sizes[name] = max(sizes.values()) + draw.randrange(1, 20)
    table = "".join(f"{each} {size}\n" for each, size in sorted(sizes.items()))
    ask = draw.phrase(
        "list.txt has names and numbers. Delete the file in the folder things whose number is the largest.",
        "Of the files in the folder things, delete the one with the largest number in list.txt.",
    )

    def deleting(which: str) -> Script:
        choosing = (f"type(content='{which}')", *press("esc"), *press("delete"), "window('Confirm')")
        return (*_open("things"), *choosing, *press("enter"), "window('things')")

    wanted = {f"{each}.dat": b"" for each in names if each != name}
    return Instance(
        ask,
        launch=("mousepad", "~/list.txt"),
        window="list.txt",
        done=lambda home: home.tree("things") == wanted,
        solution=deleting(name),
        near_misses={"another one": deleting(other), "two": (*deleting(name), *deleting(other))},
        files={"list.txt": table.encode(), **{f"things/{each}.dat": b"" for each in names}},
    )


def cell_into_a_note(draw: Draw) -> Instance:
    """Look a number up in a sheet and write it into a note."""
    rows, name, number, wrong = _prices(draw)
    note = f"{draw.choice(NOUNS)}-{draw.randrange(10, 100)}.txt"
    ask = draw.phrase(
        "Which number has {} in the table? Write it into the empty file {} in the home folder and save that.",
        "Write the number of {} from the table into {}, an empty file in the home folder. Save it.",
    )

    def noting(text: str, saved: str = SAVE) -> Script:
        return (*_open(note), f"type(content='{text}')", saved)

    return Instance(
        ask.format(name, note),
        launch=("soffice", "--norestore", "~/Documents/table.ods"),
        window="table.ods",
        done=lambda home: home.text(note).strip() == str(number) and _numbers(home) == filled(rows),
        solution=noting(str(number)),
        near_misses={"of another row": noting(str(wrong)), "not saved": noting(str(number), "wait()")},
        files={"Documents/table.ods": spreadsheet({"Sheet1": rows}), note: b""},
    )


def note_into_a_sheet(draw: Draw) -> Instance:
    """Enter what a note says into the row of a name in a sheet."""
    rows, name, _, _ = _prices(draw)
    number, row = draw.randrange(100, 1000), [each[0] for each in rows].index(name) + 1
    other = row + 1 if row < len(rows) else 2
    note = f"{name} called: the number is {number} now."
    ask = draw.phrase(
        "note.txt says that a number in the table Documents/table.ods is another one. Correct it there and save.",
        "Correct the table Documents/table.ods by what note.txt says, and save it.",
    )
    table = ("type(content='table')", *press("esc"), *press("enter"), "window('Calc')")

    def entering(line: int, what: int, saved: str = SAVE) -> Script:
        go = (*press("ctrl shift t"), f"type(content='B{line}')", *press("enter"))
        return (*_open("Documents"), *table, *go, f"type(content='{what}\\n')", saved)

    return Instance(
        ask,
        launch=("mousepad", "~/note.txt"),
        window="note.txt",
        done=lambda home: _numbers(home) == {**filled(rows), f"B{row}": number},
        solution=entering(row, number),
        near_misses={"in another row": entering(other, number), "not saved": entering(row, number, "wait()")},
        files={"Documents/table.ods": spreadsheet({"Sheet1": rows}), "note.txt": note.encode()},
    )


def _open(name: str) -> Script:
    """Open a text or a folder of the home directory by the file manager."""
    manager = (*press("win e"), "window('user')")
    return (*manager, f"type(content='{name}')", *press("esc"), *press("enter"), f"window('{name}')")


def _numbers(home: Home) -> Mapping[str, Value]:
    """Return the values of the table, if there is no other sheet."""
    sheets = read_sheets(home.content("Documents/table.ods"))
    return {place: cell.value for place, cell in sheets["Sheet1"].items()} if list(sheets) == ["Sheet1"] else {}


def _prices(draw: Draw) -> tuple[Rows, str, int, int]:
    """Return rows of names and numbers, one of the names, its number and another one's."""
    names = draw.sample(PEOPLE, draw.randrange(4, 9))
    numbers = draw.sample(range(10, 100), len(names))
    rows: Rows = [["Name", "Number"]]
    rows += [[name, number] for name, number in zip(names, numbers, strict=True)]
    chosen, other = draw.sample(range(len(names)), 2)
    return rows, names[chosen], numbers[chosen], numbers[other]
