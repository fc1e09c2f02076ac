"""Tasks in the file manager: rename, move, copy, delete, make folders."""

from collections.abc import Mapping, Sequence

from arpo.envs.desktop.templates.template import Draw, Instance, Script, press
from arpo.envs.desktop.templates.words import ADJECTIVES, NOUNS, file_names, sentence

FOLDER = "papers"

Files = dict[str, bytes]


def rename_a_file(draw: Draw) -> Instance:
    """Rename one of several files."""
    files, (old, other, *_) = _some_files(draw)
    new = f"{draw.choice(ADJECTIVES)}-{draw.choice(NOUNS)}-{draw.randrange(10, 100)}.txt"
    ask = draw.phrase("Rename {} to {}.", "The file {} should be called {}.", "Change the name of {} into {}.")
    return _instance(
        ask.format(old, new),
        files,
        {**_without(files, old), new: files[old]},
        _rename(old, new),
        {"another file": _rename(other, new), "another name": _rename(old, f"{new[:-4]}-2.txt")},
    )


def delete_a_file(draw: Draw) -> Instance:
    """Delete one of several files."""
    files, (gone, other, *_) = _some_files(draw)
    ask = draw.phrase("Delete {}.", "I do not need {} any more. Remove it.", "Throw {} away.")
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
    asks = ("Move {} into the folder {}.", "{} belongs into the folder {}. Move it there.")
    return _carrying(draw, asks, "x", "a copy")


def copy_a_file(draw: Draw) -> Instance:
    """Copy a file into one of two folders."""
    asks = ("Copy {} into the folder {}.", "Put a copy of {} into the folder {}, and leave the file here.")
    return _carrying(draw, asks, "c", "moved")


def make_a_folder(draw: Draw) -> Instance:
    """Make a folder."""
    files, _ = _some_files(draw)
    name = f"{draw.choice(ADJECTIVES)} {draw.choice(NOUNS)} {draw.randrange(2000, 2030)}"
    ask = draw.phrase("Make a folder with the name '{}' in this one.", "Create a new folder here and call it '{}'.")

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
    ask = draw.phrase("Rename the folder {} to {}.", "Call the folder {} {} instead.")
    return _instance(
        ask.format(folder, new),
        files,
        {**_without(files, inside, f"{folder}/"), f"{new}/": b"", f"{new}/{names[0]}": files[inside]},
        _rename(folder, new),
        {
            "the other folder": _rename(other, new),
            "renamed and emptied": (*_rename(folder, new), *_enter(new), "hotkey(key='ctrl a')", *_delete(new)),
        },
    )


def empty_a_folder(draw: Draw) -> Instance:
    """Delete all that is in a folder, and not the folder."""
    files, _, (folder, other) = _with_folders(draw)
    inside = {f"{where}/{name}": sentence(draw).encode() for where in (folder, other) for name in file_names(draw, 3)}
    files = {**files, **inside}
    ask = draw.phrase("Empty the folder {}.", "Delete everything in the folder {}, but keep the folder itself.")
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


def _carrying(draw: Draw, asks: Sequence[str], key: str, mistake: str) -> Instance:
    """Return an instance in which a file is to be cut (key x) or copied (key c); the other one is a mistake."""
    files, (name, other, *_), (folder, wrong) = _with_folders(draw)
    ask = draw.phrase(*asks)
    left, other_key = (_without(files, name), "c") if key == "x" else (files, "x")
    return _instance(
        ask.format(name, folder),
        files,
        {**left, f"{folder}/{name}": files[name]},
        _carry(name, key, folder),
        {
            "into the other folder": _carry(name, key, wrong),
            "another file": _carry(other, key, folder),
            mistake: _carry(name, other_key, folder),
        },
    )


def _rename(name: str, to: str) -> Script:
    return (*_select(name), "hotkey(key='f2')", "hotkey(key='ctrl a')", f"type(content='{to}\\n')")


def _carry(name: str, key: str, to: str) -> Script:
    """Cut (key x) or copy (key c) a file, and paste it into a folder."""
    return (*_select(name), f"hotkey(key='ctrl {key}')", *_enter(to), "hotkey(key='ctrl v')")


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
