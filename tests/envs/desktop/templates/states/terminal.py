"""What an agent may leave of a folder in the terminal, by template."""

import re

from tests.envs.desktop.templates.states.common import names_in, other_files, said

WORK = "work"


def _work(instance):
    return {path.removeprefix("work/") for path in instance.files}


def make_executable(instance):
    name = re.search(r"[\w-]+\.sh", instance.instruction)[0]
    others = sorted(_work(instance) - {name})
    right = f"chmod +x work/{name}"
    yield "right", True, right
    yield "for the user alone", True, f"chmod u+x work/{name}"
    yield "755", True, f"chmod 755 work/{name}"
    yield "700", True, f"chmod 700 work/{name}"
    yield "for the others alone", False, f"chmod o+x work/{name}"
    yield "but not to be read", False, f"chmod 111 work/{name}"
    yield "a hidden one too", False, f"{right}; cp work/{name} work/.x"
    yield "a link to a program", False, f"ln -sf /bin/true work/{name}"
    yield "another program", False, f"cp /bin/true work/{name}; {right}"
    yield "a program without a name", False, f"cp work/{name} 'work/ '; chmod +x 'work/ '"
    yield "names of two lines", False, f"cp work/{name} 'work/a\nbcdx'; {right}"
    yield from other_files(right, "work", others, name)


def set_permissions(instance):
    name = next(each for each in names_in(instance) if each in _work(instance))
    mode = re.search(r"\b\d{3}\b", instance.instruction)[0]
    others = sorted(_work(instance) - {name})
    right = f"chmod {mode} work/{name}"
    yield "right", True, right
    yield "with a zero", True, f"chmod 0{mode} work/{name}"
    yield "more", False, f"chmod {int(mode[0]) | 1}{mode[1:]} work/{name}"
    yield "sticky", False, f"chmod 1{mode} work/{name}"
    yield "all", False, f"chmod {mode} work/*"
    yield from other_files(right, "work", others, name)


def count_lines(instance):
    ((path, content),) = instance.files.items()
    answer = re.search(r"\w+\.count", instance.instruction)[0]
    word = re.search(r"'(\w+)'", instance.instruction)[1]
    lines = content.decode().splitlines()
    count = sum(bool(re.search(rf"\b{word}\b", line)) for line in lines)
    right = said(f"{count}\n", f"work/{answer}")
    yield "right", True, right
    yield "without an end", True, said(str(count), f"work/{answer}")
    yield "one more", False, said(str(count + 1), f"work/{answer}")
    yield "the lines", False, f"grep {word} {path} > work/{answer}"
    yield "in the file itself", False, f"{said(str(count), path)}"
    yield "and the file gone", False, f"{right}; rm {path}"
    yield "and the file without the other lines", False, f"{right}; sed -i /{word}/!d {path}"
    yield "a zero more", False, said(f"{count}0", f"work/{answer}")


def sort_a_file(instance):
    (path,) = instance.files
    target = re.search(r"work/(sorted-\d+\.txt)", instance.instruction)[1]
    flag = "-r" if "reverse" in instance.instruction else ""
    right = f"sort {flag} {path} > work/{target}"
    yield "right", True, right
    yield "the other way", False, f"sort {'' if flag else '-r'} {path} > work/{target}"
    yield "as it is", False, f"cp {path} work/{target}"
    yield "in place too", False, f"sort {flag} {path} -o {path}; {right}"
    yield from other_files(right, "work", {path.removeprefix("work/")}, target)


def collect_by_ending(instance):
    ending = re.search(r"\.(\w+)\b", instance.instruction)[1]
    folder = re.search(r"work/([\w-]+)", instance.instruction)[1]
    others = {each for each in _work(instance) if not each.endswith(f".{ending}")}
    right = f"mkdir work/{folder}; mv work/*.{ending} work/{folder}"
    yield "right", True, right
    copied = f"mkdir work/{folder}; cp work/*.{ending} work/{folder}"
    yield "copied, and the first locked", False, f"{copied}; chmod 0 work/*.{ending}"
    yield "copied", False, copied
    yield "one is left", False, f"{right}; cd work; mv $(ls -d {folder}/* | head -1) ."
    yield "links", False, f"mkdir work/{folder}; for f in work/*.{ending}; do ln -s ../../$f work/{folder}; done"
    yield from other_files(right, "work", others)


def pack_a_folder(instance):
    folder = re.search(r"work/([\w-]+)\.tar", instance.instruction)[1]
    archive = f"{folder}.tar.gz"
    inside = sorted(_work(instance))
    right = f"cd work; tar -czf {archive} {folder}"
    yield "right", True, right
    yield "from above", True, f"tar -czf work/{archive} work/{folder}"
    yield "from here", True, f"cd work; tar -czf {archive} ./{folder}"
    yield "with a slash", True, f"cd work; tar -czf {archive} {folder}/"
    yield "in two steps", True, f"cd work; tar -cf {folder}.tar {folder}; gzip {folder}.tar"
    above = f"mkdir a; cd a; mkdir -p home/user/work; cp -r ../{WORK}/{folder} home/user/work"
    yield "by the whole path", True, f"{above}; tar -czf ../{WORK}/{archive} home/user/work"
    yield "and the folder gone", False, f"{right}; rm -r {folder}"
    yield "and a file of it gone", False, f"{right}; rm {inside[0]}"
    for what, change in (
        ("of empty files", "for f in */*; do : > $f; done"),
        ("of changed files", f"echo >> {inside[0]}"),
        ("of links", "for f in */*; do ln -sf /etc/passwd $f; done"),
        ("with one file more", f"echo > {folder}/more"),
    ):
        yield what, False, f"cp -r work a; cd a; {change}; tar -czf ../{WORK}/{archive} {folder}"
    yield "without the folder", False, f"cd work/{folder}; tar -czf ../{archive} ."
    yield "with itself", False, f"cd work; : > {archive}; tar -czf {archive} {folder} {archive}"
    yield "packed otherwise", False, f"cd work; tar -cJf {archive} {folder}"
    yield "half of it", False, f"{right}; truncate -s 80 {archive}"
    yield "a pipe", False, f"mkfifo work/{archive}"
    yield "and one more file", False, f"{right}; echo > more"


def write_down_the_largest(instance):
    largest = max(instance.files, key=lambda path: len(instance.files[path])).removeprefix("work/")
    answer = re.search(r"\w+-\d+\.txt", instance.instruction)[0]
    yield "right", True, said(f"{largest}\n", answer)
    yield "with the folder", True, said(f"work/{largest}", answer)
    yield "with its size", False, said(f"{len(instance.files[f'work/{largest}'])} {largest}\n", answer)
    yield "in the folder", False, said(largest, f"work/{answer}")
    yield "all", False, f"ls -S work > {answer}"
    yield "and the others gone", False, f"{said(largest, answer)}; find work -type f ! -name {largest} -delete"
    yield "and it emptied", False, f"{said(largest, answer)}; : > work/{largest}"
