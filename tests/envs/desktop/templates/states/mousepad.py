"""What an agent may leave of a text in the editor, by template."""

import re
import shlex

from tests.envs.desktop.templates.states.common import names_in, other_files, replaced, said


def _note(instance):
    ((path, content),) = instance.files.items()
    return path, content.decode()


def other_lines(path, right, before):
    yield "upper case", False, said(right.upper(), path)
    yield "one more line", False, said(f"{right}More.\n", path)
    yield "a line above", False, said(f"More.\n{right}", path)
    yield "two spaces", False, said(right.replace(" ", "  ", 1), path)
    yield "a space at the end of a line", False, said(right.replace("\n", " \n", 1), path)
    yield "all in one line", False, said(right.replace("\n", " "), path)
    yield "as it was", False, said(before, path)
    yield "in another encoding", False, f"printf %s {shlex.quote(right)} | iconv -t UTF-16 > {path}"
    yield "nothing", False, f": > {path}"
    yield "gone", False, f"rm {path}"
    yield "a folder", False, f"rm {path}; mkdir {path}"
    yield "a pipe", False, f"rm {path}; mkfifo {path}"


def append_a_line(instance):
    path, text = _note(instance)
    line = re.search(r"'(.+)'", instance.instruction)[1]
    yield "right", True, said(f"{text}{line}\n", path)
    yield "without an end", True, said(f"{text}{line}", path)
    yield "an empty line behind it", True, said(f"{text}{line}\n\n", path)
    yield "in the last line", False, said(f"{text[:-1]} {line}\n", path)
    yield "before the last line", False, said("\n".join([*text.split("\n")[:-2], line, *text.split("\n")[-2:]]), path)
    yield "twice", False, said(f"{text}{line}\n{line}\n", path)
    yield from other_lines(path, f"{text}{line}\n", text)


def insert_a_title(instance):
    path, text = _note(instance)
    title = re.search(r"'(.+)'", instance.instruction)[1]
    yield "right", True, said(f"{title}\n{text}", path)
    yield "without an end", True, said(f"{title}\n{text[:-1]}", path)
    yield "in the first line", False, said(f"{title} {text}", path)
    yield "at the end", False, said(f"{text}{title}\n", path)
    yield from other_lines(path, f"{title}\n{text}", text)


def delete_a_line(instance):
    path, text = _note(instance)
    number = int(re.search(r"\d+", instance.instruction)[0])
    lines = text.splitlines()
    right = "\n".join(lines[: number - 1] + lines[number:]) + "\n"
    yield "right", True, said(right, path)
    yield "without an end", True, said(right[:-1], path)
    yield "emptied", False, said("\n".join([*lines[: number - 1], "", *lines[number:], ""]), path)
    yield "a space is left", False, said("\n".join([*lines[: number - 1], " ", *lines[number:], ""]), path)
    yield from other_lines(path, right, text)


def replace_a_word(instance):
    path, text = _note(instance)
    old, new = replaced(instance)
    right = text.replace(old, new)
    yield "right", True, said(right, path)
    yield "without an end", True, said(right[:-1], path)
    yield "but one", False, said(text.replace(old, new, text.count(old) - 1), path)
    yield "the other way round", False, said(text.replace(new, old), path)
    yield from other_lines(path, right, text)


def correct_a_number(instance):
    path, text = _note(instance)
    price = re.search(r"\d+", instance.instruction)[0]
    name = re.search(r"(?:The|of the) (\w+)", instance.instruction)[1]
    right = re.sub(rf"(?m)^{name}: \d+$", f"{name}: {price}", text)
    yield "right", True, said(right, path)
    yield "no space", False, said(right.replace(f"{name}: ", f"{name}:"), path)
    yield "all of them", False, said(re.sub(r"\d+", price, text), path)
    yield from other_lines(path, right, text)


def save_a_copy(instance):
    path, text = _note(instance)
    name = path.removeprefix("notes/")
    copy = next(each for each in names_in(instance) if each != name)
    right = f"cp {path} notes/{copy}"
    yield "right", True, right
    yield "renamed", False, f"mv {path} notes/{copy}"
    yield "no end", False, said(text[:-1], f"notes/{copy}")
    yield "the first locked", False, f"{right}; chmod 0 {path}"
    yield from other_files(right, "notes", {name}, copy)


def write_a_note(instance):
    text, (name,) = re.search(r"'(.+)'", instance.instruction)[1], re.findall(r"\w+-\d+\.txt", instance.instruction)
    yield "right", True, said(text, name)
    yield "with an end", True, said(f"{text}\n", name)
    yield "without its full stop", False, said(text[:-1], name)
    yield "in quotes", False, said(f"'{text}'", name)
    yield "twice", False, said(f"{text}\n{text}\n", name)
    yield "elsewhere", False, f"mkdir Documents; {said(text, f'Documents/{name}')}"
    yield "a folder", False, f"mkdir {name}"
    yield "a link to nothing", False, f"ln -s {name} {name}"
    yield "in another encoding", False, f"printf %s {shlex.quote(text)} | iconv -t UTF-16 > {name}"
