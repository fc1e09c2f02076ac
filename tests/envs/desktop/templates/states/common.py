"""States that applications share: what each is, whether it is right, and a command or content that makes it."""

import re
import shlex

TEXT = r"[\w-]+\.\w+(?:\.gz)?"


def names_in(instance):
    return re.findall(TEXT, instance.instruction)


def said(text, path):
    return f"printf %s {shlex.quote(text)} > {shlex.quote(path)}"


def other_files(right, folder, names, made=""):
    """What no task of a folder asks for, beside the right commands."""
    first = f"{folder}/{sorted(names)[0]}"
    yield "and one more file", False, f"{right}; echo > {folder}/more.txt"
    yield "and a hidden file", False, f"{right}; echo > {folder}/.more"
    yield "and a folder", False, f"{right}; mkdir {folder}/more"
    yield "and a folder that cannot be read", False, f"{right}; mkdir {folder}/more; chmod 0 {folder}/more"
    yield "and a file that cannot be read", False, f"{right}; echo > {folder}/more; chmod 0 {folder}/more"
    yield "and a link", False, f"{right}; ln -s /etc/passwd {folder}/more"
    yield "and a pipe", False, f"{right}; mkfifo {folder}/more"
    yield "and another file changed", False, f"{right}; echo >> {first}"
    yield "and another file emptied", False, f"{right}; : > {first}"
    yield "and another file deleted", False, f"{right}; rm {first}"
    yield "and another file a folder", False, f"{right}; rm {first}; mkdir {first}"
    yield "and another file a link to a copy", False, f"{right}; mv {first} copy; ln -s ../copy {first}"
    yield "and nothing else", False, f"{right}; rm -r {folder}"
    yield "and a file instead of the folder", False, f"{right}; rm -r {folder}; echo > {folder}"
    yield "and a file of 5 MB", False, f"{right}; head -c 5000000 /dev/zero > {folder}/more"
    yield "nothing", False, "true"
    path = f"{folder}/{made}"
    changes = f"rm {path}; : > {path}", f"rm {path}; mkdir {path}", f"mv {path} copy; ln -s ../copy {path}"
    for change in (*changes, f"mv {path} {path}~", f"mv {path} .") if made else ():
        yield change, False, f"{right}; {change}"


def replaced(instance):
    old, new = re.findall(r"'(\w+)'", instance.instruction)
    return (new, old) if instance.instruction.startswith("Write") else (old, new)


ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth")


def number_of(instance):
    return ORDINALS.index(re.search("|".join(ORDINALS), instance.instruction)[0])
