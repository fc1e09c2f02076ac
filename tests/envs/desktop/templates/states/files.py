"""What an agent may leave of a folder in the file manager, by template."""

import re

from tests.envs.desktop.templates.states.common import names_in, other_files


def _papers(instance):
    return {path.removeprefix("papers/") for path in instance.files if not path.endswith("/")}


def rename_a_file(instance):
    old, new = names_in(instance)
    others = _papers(instance) - {old}
    yield "right", True, f"mv papers/{old} papers/{new}"
    yield "a copy, and the first removed", True, f"cp papers/{old} papers/{new}; rm papers/{old}"
    yield "a copy", False, f"cp papers/{old} papers/{new}"
    yield "a copy, and the first locked", False, f"cp papers/{old} papers/{new}; chmod 0 papers/{old}"
    yield from other_files(f"mv papers/{old} papers/{new}", "papers", others, new)


def delete_a_file(instance):
    (gone,) = names_in(instance)
    yield "right", True, f"rm papers/{gone}"
    yield "moved to the trash", True, f"mkdir -p .local/share/Trash/files; mv papers/{gone} .local/share/Trash/files"
    yield "locked", False, f"chmod 0 papers/{gone}"
    yield "hidden", False, f"mv papers/{gone} papers/.{gone}"
    yield "emptied", False, f": > papers/{gone}"
    yield "moved into a locked folder", False, f"mkdir papers/a; mv papers/{gone} papers/a; chmod 0 papers/a"
    yield from other_files(f"rm papers/{gone}", "papers", _papers(instance) - {gone})


def _moved(instance):
    (name,) = names_in(instance)
    folders = [path.split("/")[1] for path in instance.files if path.endswith("/")]
    folder = next(each for each in folders if re.search(rf"folder {each}\b", instance.instruction))
    other = next(each for each in folders if each != folder)
    return name, folder, other


def move_a_file(instance):
    name, folder, _ = _moved(instance)
    right = f"mv papers/{name} papers/{folder}"
    yield "right", True, right
    yield "a copy", False, f"cp papers/{name} papers/{folder}"
    yield "a copy, and the first locked", False, f"cp papers/{name} papers/{folder}; chmod 0 papers/{name}"
    yield "a copy, and the first hidden", False, f"cp papers/{name} papers/{folder}; mv papers/{name} papers/.{name}"
    yield "the folder over it", False, f"rmdir papers/{folder}; mv papers/{name} papers/{folder}"
    yield from other_files(right, "papers", _papers(instance) - {name}, f"{folder}/{name}")


def copy_a_file(instance):
    name, folder, other = _moved(instance)
    right = f"cp papers/{name} papers/{folder}"
    yield "right", True, right
    yield "moved", False, f"mv papers/{name} papers/{folder}"
    yield "into both", False, f"cp papers/{name} papers/{other}; cp papers/{name} papers/{folder}"
    yield from other_files(right, "papers", _papers(instance) - {name}, f"{folder}/{name}")


def make_a_folder(instance):
    name = re.search(r"'(.+)'", instance.instruction)[1]
    right = f"mkdir 'papers/{name}'"
    yield "right", True, right
    yield "a file", False, f"echo > 'papers/{name}'"
    yield "a link", False, f"ln -s /tmp 'papers/{name}'"
    yield "a space behind", False, f"mkdir 'papers/{name} '"
    yield "with something hidden in it", False, f"{right}; echo > 'papers/{name}/.a'; chmod 0 'papers/{name}/.a'"
    yield from other_files(right, "papers", _papers(instance))


def rename_a_folder(instance):
    old, new = re.search(r"folder (\w+) (?:to )?([\w-]+)", instance.instruction).groups()
    inside = next(path for path in instance.files if path.startswith(f"papers/{old}/") and not path.endswith("/"))
    inside = inside.rpartition("/")[2]
    right = f"mv papers/{old} papers/{new}"
    yield "right", True, right
    yield "a copy", False, f"cp -r papers/{old} papers/{new}"
    yield "a copy, and the first locked", False, f"cp -r papers/{old} papers/{new}; chmod 0 papers/{old}"
    yield "a link", False, f"ln -s {old} papers/{new}"
    yield "its file locked", False, f"{right}; chmod 0 papers/{new}/{inside}"
    names = {each for each in _papers(instance) if "/" not in each}
    yield from other_files(right, "papers", names)


def empty_a_folder(instance):
    folder = re.search(r"folder (\w+)", instance.instruction)[1]
    right = f"rm papers/{folder}/*"
    yield "right", True, right
    yield "the folder made anew", True, f"rm -r papers/{folder}; mkdir papers/{folder}"
    yield "its files emptied", False, f"for f in papers/{folder}/*; do : > $f; done"
    yield "its files locked", False, f"chmod 0 papers/{folder}/*"
    yield "the folder locked", False, f"chmod 0 papers/{folder}"
    yield "the folder that nobody can look into", False, f"chmod 300 papers/{folder}"
    yield "the folder is gone", False, f"rm -r papers/{folder}"
    yield "a link instead", False, f"rm -r papers/{folder}; ln -s /tmp papers/{folder}"
    yield from other_files(right, "papers", {each for each in _papers(instance) if not each.startswith(folder)})
