"""Tasks in a terminal: permissions, archives, counting, sorting, links."""

from collections.abc import Callable, Iterator, Mapping

from arpo.envs.desktop.templates.template import HOME, Draw, Home, Instance, Script
from arpo.envs.desktop.templates.words import NOUNS, file_name, file_names, sentence

FOLDER = "work"


def make_executable(draw: Draw) -> Instance:
    """Let the user run one of several scripts."""
    names = file_names(draw, draw.randrange(3, 6), "sh")
    name, other = draw.sample(names, 2)
    ask = draw.phrase(
        "Make {} in the folder work executable.", "The script work/{} cannot be run. Make it executable."
    )

    files = {each: f"echo {sentence(draw)}\n".encode() for each in names}

    def done(home: Home) -> bool:
        found = home.output(f"cd {HOME}/{FOLDER} && find . -type f -perm -u=x")
        return found == f"./{name}\n" and home.tree(FOLDER) == files

    return _instance(
        ask.format(name),
        files,
        done,
        (f"chmod +x work/{name}",),
        {"another one": (f"chmod +x work/{other}",), "all of them": ("chmod +x work/*",)},
    )


def set_permissions(draw: Draw) -> Instance:
    """Set the mode of one of several files, in octal."""
    names = file_names(draw, draw.randrange(2, 5))
    name, mode = draw.choice(names), draw.choice(("600", "640", "660", "440", "400", "664"))
    other = draw.choice([each for each in ("755", "700", "777") if each != mode])
    ask = draw.phrase(
        "Set the permissions of work/{} to {}.", "Change the mode of the file {} in the folder work to {}."
    )
    files = {each: sentence(draw).encode() for each in names}
    wanted = sorted(f"{mode if each == name else 644} {each}" for each in names)

    def done(home: Home) -> bool:
        found = home.output(f"cd {HOME}/{FOLDER} && stat -c '%a %n' *")
        return sorted(found.splitlines()) == wanted and home.tree(FOLDER) == files

    return _instance(
        ask.format(name, mode),
        files,
        done,
        (f"chmod {mode} work/{name}",),
        {"another mode": (f"chmod {other} work/{name}",), "all of them": (f"chmod {mode} work/*",)},
    )


def count_lines(draw: Draw) -> Instance:
    """Count the lines of a text that hold a word, and write the number into a file."""
    word, other = draw.sample(NOUNS, 2)
    lines = [f"{sentence(draw)} {draw.choice((word, other, word, ''))}".strip() for _ in range(draw.randrange(12, 40))]
    lines = [line.replace(f" {word}.", " thing.") for line in lines] + [f"One {word}."]
    name, answer = file_name(draw, "log"), f"{draw.choice(NOUNS)}.count"
    count = sum(word in line for line in lines)
    ask = draw.phrase(
        "How many lines of work/{} have the word '{}'? Write the number into work/{}.",
        "Count the lines of work/{} in which '{}' stands, and write how many there are into work/{}.",
    )
    text = ("\n".join(lines) + "\n").encode()

    def done(home: Home) -> bool:
        found = home.text(f"{FOLDER}/{answer}").strip()
        return found == str(count) and home.content(f"{FOLDER}/{name}") == text

    return _instance(
        ask.format(name, word, answer),
        {name: text},
        done,
        (f"grep -c {word} work/{name} > work/{answer}",),
        {
            "all lines": (f"wc -l < work/{name} > work/{answer}",),
            "on the screen alone": (f"grep -c {word} work/{name}",),
        },
    )


def sort_a_file(draw: Draw) -> Instance:
    """Sort the lines of a text into another file."""
    lines, name = draw.sample(NOUNS, draw.randrange(6, 15)), file_name(draw)
    down = draw.random() < 0.5
    target = f"sorted-{draw.randrange(10, 1000)}.txt"
    ask = draw.phrase(
        "Sort the lines of work/{} {} and write them into work/{}.",
        "Write the lines of {} in the folder work, sorted {}, into work/{}.",
    )
    text = ("\n".join(lines) + "\n").encode()
    flag, wrong = ("-r ", "") if down else ("", "-r ")
    wanted = {name: text, target: ("\n".join(sorted(lines, reverse=down)) + "\n").encode()}
    return _instance(
        ask.format(name, "in reverse alphabetical order" if down else "alphabetically", target),
        {name: text},
        lambda home: home.tree(FOLDER) == wanted,
        (f"sort {flag}work/{name} > work/{target}",),
        {
            "the wrong direction": (f"sort {wrong}work/{name} > work/{target}",),
            "in place": (f"sort {flag}work/{name} -o work/{name}",),
        },
    )


def collect_by_ending(draw: Draw) -> Instance:
    """Move all files of one kind into a new folder."""
    ending, other = draw.sample(("txt", "log", "csv", "md", "ini"), 2)
    names = [*file_names(draw, draw.randrange(2, 5), ending), *file_names(draw, 2, other)]
    files = {name: sentence(draw).encode() for name in names}
    folder = f"{draw.choice(NOUNS)}-{ending}"
    ask = draw.phrase(
        "Move all .{} files of the folder work into a new folder work/{}.",
        "The files of the folder work that end in .{0} belong into a new folder work/{1}. Move them there.",
    )
    wanted = {f"{folder}/{name}" if name.endswith(ending) else name: files[name] for name in names}
    return _instance(
        ask.format(ending, folder),
        files,
        lambda home: home.tree(FOLDER) == {**wanted, f"{folder}/": b""},
        (f"mkdir work/{folder}", f"mv work/*.{ending} work/{folder}"),
        {
            "copied": (f"mkdir work/{folder}", f"cp work/*.{ending} work/{folder}"),
            "the other ones": (f"mkdir work/{folder}", f"mv work/*.{other} work/{folder}"),
        },
    )


def pack_a_folder(draw: Draw) -> Instance:
    """Pack a folder into a compressed archive."""
    folder = f"{draw.choice(NOUNS)}-{draw.randrange(10, 100)}"
    files = {f"{folder}/{name}": sentence(draw).encode() for name in file_names(draw, draw.randrange(2, 5))}
    ask = draw.phrase(
        "Pack the folder work/{0} as work/{0}.tar.gz.",
        "Make a compressed tar archive work/{0}.tar.gz of the folder {0} in work.",
    )

    wanted = {f"{folder}/": b"", **files}

    def done(home: Home) -> bool:
        left = {path: content for path, content in home.tree(FOLDER).items() if path != f"{folder}.tar.gz"}
        return left == wanted and home.unpacked(f"{FOLDER}/{folder}.tar.gz") in _from_above(wanted)

    first = min(files)
    return _instance(
        ask.format(folder),
        files,
        done,
        (f"cd work; tar -czf {folder}.tar.gz {folder}",),
        {
            "not compressed": (f"cd work; tar -cf {folder}.tar.gz {folder}",),
            "one file of it": (f"cd work; tar -czf {folder}.tar.gz {first}",),
        },
    )


def write_down_the_largest(draw: Draw) -> Instance:
    """Find the largest file and write its name into another one."""
    names = file_names(draw, draw.randrange(4, 8), "dat")
    sizes = draw.sample(range(100, 3000), len(names))
    files = {name: b"x" * size for name, size in zip(names, sizes, strict=True)}
    largest = max(names, key=lambda name: len(files[name]))
    answer = f"{draw.choice(NOUNS)}-{draw.randrange(10, 100)}.txt"
    ask = draw.phrase(
        "Which file in work is the largest? Write its name into {} in the home folder.",
        "Write the name of the largest file of the folder work into {} in the home folder.",
    )

    return _instance(
        ask.format(answer),
        files,
        lambda home: home.text(answer).strip().removeprefix("work/") == largest and home.tree(FOLDER) == files,
        (f"ls -S work | head -1 > {answer}",),
        {"the smallest": (f"ls -Sr work | head -1 > {answer}",), "all names": (f"ls -S work > {answer}",)},
    )


def _from_above(wanted: Mapping[str, bytes]) -> Iterator[dict[str, bytes]]:
    """Yield the entries of an archive as they are from `FOLDER`, and as they are from every folder above it."""
    entries = dict(wanted)
    yield entries
    for name in reversed(f"{HOME}/{FOLDER}"[1:].split("/")):
        entries = {f"{name}/": b"", **{f"{name}/{path}": content for path, content in entries.items()}}
        yield entries


def _instance(
    instruction: str,
    files: Mapping[str, bytes],
    done: Callable[[Home], bool],
    commands: Script,
    near_misses: Mapping[str, Script],
) -> Instance:
    return Instance(
        instruction,
        launch=("xterm",),
        window="xterm",
        done=done,
        solution=_typed(commands),
        near_misses={name: _typed(wrong) for name, wrong in near_misses.items()},
        files={f"{FOLDER}/{name}": content for name, content in files.items()},
    )


def _typed(commands: Script) -> Script:
    return tuple(f"type(content='{command}\\n')" for command in commands)
