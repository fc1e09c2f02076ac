"""Tasks in the file manager: rename, move, copy, delete, make folders."""

from collections.abc import Mapping

from arpo.envs.desktop.templates.template import Draw, Instance, Script, press
from arpo.envs.desktop.templates.words import ADJECTIVES, NOUNS, file_names, sentence

FOLDER = "papers"

Files = dict[str, bytes]


def rename_a_file(draw: Draw) -> Instance:
    """Rename one of several files."""
    files, (old, other, *_) = _some_files(draw)
    new = f"{draw.choice(ADJECTIVES)}-{draw.choice(NOUNS)}-{draw.randrange(10, 100)}.txt"
    ask = draw.choice(("Rename {} to {}.", "The file {} should be called {}.", "Change the name of {} into {}."))

    def renaming(name: str, to: str) -> Script:
        return (*_select(name), "hotkey(key='f2')", "hotkey(key='ctrl a')", f"type(content='{to}\\n')")

    return _instance(
        ask.format(old, new),
        files,
        {**_without(files, old), new: files[old]},
        renaming(old, new),
        {"another file": renaming(other, new), "another name": renaming(old, f"{new[:-4]}-2.txt")},
    )


def delete_a_file(draw: Draw) -> Instance:
    """Delete one of several files."""
    files, (gone, other, *_) = _some_files(draw)
    ask = draw.choice(("Delete {}.", "I do not need {} any more. Remove it.", "Throw {} away."))
    solution = (*_select(gone), *_delete())
    return _instance(
        ask.format(gone),
        files,
        _without(files, gone),
        solution,
        {"another file": (*_select(other), *_delete()), "more than that": (*solution, *_select(other), *_delete())},
    )


def move_a_file(draw: Draw) -> Instance:
    """Move a file into one of two folders."""
    files, (name, other, *_), (folder, wrong) = _with_folders(draw)
    ask = draw.choice(("Move {} into the folder {}.", "{} belongs into the folder {}. Move it there."))

    def moving(what: str, to: str) -> Script:
        return (*_select(what), "hotkey(key='ctrl x')", *_enter(to), "hotkey(key='ctrl v')")

    return _instance(
        ask.format(name, folder),
        files,
        {**_without(files, name), f"{folder}/{name}": files[name]},
        moving(name, folder),
        {
            "into the other folder": moving(name, wrong),
            "another file": moving(other, folder),
            "a copy": (*_select(name), "hotkey(key='ctrl c')", *_enter(folder), "hotkey(key='ctrl v')"),
        },
    )


def copy_a_file(draw: Draw) -> Instance:
    """Copy a file into one of two folders."""
    files, (name, other, *_), (folder, wrong) = _with_folders(draw)
    ask = draw.choice(("Copy {} into the folder {}.", "Put a copy of {} into the folder {}, and leave the file here."))

    def copying(what: str, to: str, key: str = "c") -> Script:
        return (*_select(what), f"hotkey(key='ctrl {key}')", *_enter(to), "hotkey(key='ctrl v')")

    return _instance(
        ask.format(name, folder),
        files,
        {**files, f"{folder}/{name}": files[name]},
        copying(name, folder),
        {
            "into the other folder": copying(name, wrong),
            "another file": copying(other, folder),
            "moved": copying(name, folder, "x"),
        },
    )


def make_a_folder(draw: Draw) -> Instance:
    """Make a folder."""
    files, _ = _some_files(draw)
    name = f"{draw.choice(ADJECTIVES)} {draw.choice(NOUNS)} {draw.randrange(2000, 2030)}"
    ask = draw.choice(("Make a folder with the name '{}' in this one.", "Create a new folder here and call it '{}'."))

    def making(what: str) -> Script:
        return ("hotkey(key='ctrl shift n')", "window('New Folder')", f"type(content='{what}\\n')")

    return _instance(
        ask.format(name),
        files,
        {**files, f"{name}/": b""},
        making(name),
        {"without the year": making(name[:-5]), "two of them": (*making(name), *making(f"{name}a"))},
    )


def rename_a_folder(draw: Draw) -> Instance:
    """Rename one of two folders; what is in it stays."""
    files, names, (folder, other) = _with_folders(draw)
    inside = f"{folder}/{names[0]}"
    files = {**files, inside: sentence(draw).encode()}
    new = f"{draw.choice(NOUNS)}-{draw.randrange(100, 1000)}"
    ask = draw.choice(("Rename the folder {} to {}.", "Call the folder {} {} instead."))

    def renaming(what: str) -> Script:
        return (*_select(what), "hotkey(key='f2')", "hotkey(key='ctrl a')", f"type(content='{new}\\n')")

    return _instance(
        ask.format(folder, new),
        files,
        {**_without(files, inside, f"{folder}/"), f"{new}/": b"", f"{new}/{names[0]}": files[inside]},
        renaming(folder),
        {
            "the other folder": renaming(other),
            "renamed and emptied": (*renaming(folder), *_enter(new), "hotkey(key='ctrl a')", *_delete(new)),
        },
    )


def empty_a_folder(draw: Draw) -> Instance:
    """Delete all that is in a folder, and not the folder."""
    files, _, (folder, other) = _with_folders(draw)
    inside = {f"{where}/{name}": sentence(draw).encode() for where in (folder, other) for name in file_names(draw, 3)}
    files = {**files, **inside}
    ask = draw.choice(("Empty the folder {}.", "Delete everything in the folder {}, but keep the folder itself."))
    left = {path: content for path, content in files.items() if not path.startswith(f"{folder}/")}

    def emptying(what: str) -> Script:
        return (*_enter(what), "hotkey(key='ctrl a')", *_delete(what))

    return _instance(
        ask.format(folder),
        files,
        {**left, f"{folder}/": b""},
        emptying(folder),
        {"the folder too": (*_select(folder), *_delete()), "the other folder": emptying(other)},
    )


def _delete(folder: str = FOLDER) -> Script:
    """Move what is selected to the trash, and confirm that."""
    return (*press("delete"), "window('Confirm')", *press("enter"), f"window('{folder}')")


def _some_files(draw: Draw) -> tuple[dict[str, bytes], list[str]]:
    """Return three to six files and their names in another order."""
    names = file_names(draw, draw.randrange(3, 7))
    files = {name: (sentence(draw) + "\n").encode() for name in names}
    draw.shuffle(names)
    return files, names


def _with_folders(draw: Draw) -> tuple[dict[str, bytes], list[str], list[str]]:
    """Return files and two folders, and the names of both."""
    files, names = _some_files(draw)
    used = {name.partition("-")[2].removesuffix(".txt") for name in names}
    folders = draw.sample([noun for noun in NOUNS if noun not in used], 2)
    return {**files, **{f"{folder}/": b"" for folder in folders}}, names, folders


def _without(files: Files, *names: str) -> Files:
    return {name: content for name, content in files.items() if name not in names}


def _select(name: str) -> Script:
    """Find a file by typing its name."""
    return (f"type(content='{name}')", "hotkey(key='esc')")


def _enter(folder: str) -> Script:
    return (*_select(folder), "hotkey(key='enter')", f"window('{folder}')")


def _instance(
    instruction: str, files: Files, wanted: Files, solution: Script, near_misses: Mapping[str, Script]
) -> Instance:
    return Instance(
        instruction,
        launch=("pcmanfm", f"~/{FOLDER}"),
        window=FOLDER,
        done=lambda home: home.tree(FOLDER) == wanted,
        solution=solution,
        near_misses=near_misses,
        files={f"{FOLDER}/{name}": content for name, content in files.items()},
    )
