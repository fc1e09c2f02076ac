"""Stand-ins for the files of tasks of `os`: scripts that set a task up or look at what was done, and pictures."""

from collections.abc import Callable
from pathlib import Path

OLD_FILES_SETUP = """#!/bin/bash
mkdir -p /tmp/test_files/reports/spring /tmp/test_files/logs
cd /tmp/test_files || exit 1
for name in notes.txt reports/spring/budget.txt logs/server.txt; do
    echo "old $name" >"$name"
    touch -d '30 days ago' "$name"
done
for name in today.txt reports/draft.txt logs/now.txt; do echo "new $name" >"$name"; done
"""
OLD_FILES_EVAL = """#!/bin/bash
cd /tmp/test_files || exit 1
for name in notes.txt reports/spring/budget.txt logs/server.txt; do
    [ ! -e "$name" ] && [ "$(zcat "$name.gz")" = "old $name" ] || { echo "Failure: $name"; exit 1; }
done
for name in today.txt reports/draft.txt logs/now.txt; do
    [ "$(cat "$name")" = "new $name" ] || { echo "Failure: $name"; exit 1; }
done
echo 'Success: The task was completed correctly.'
"""
PERMISSIONS_SETUP = """#!/bin/bash
mkdir -p testDir/inner/deep
cd testDir || exit 1
for name in one.txt inner/two.sh inner/deep/three.py; do echo "$name" >"$name"; done
chmod 600 one.txt
chmod 755 inner/two.sh
chmod 777 inner/deep/three.py
"""
PERMISSIONS_EVAL = """#!/bin/bash
cd testDir || exit 1
for name in . inner inner/deep; do
    [ "$(stat -c %a "$name")" = 755 ] || { echo "The folder $name has other permissions."; exit 1; }
done
for name in one.txt inner/two.sh inner/deep/three.py; do
    [ "$(stat -c %a "$name")" = 644 ] || { echo "The file $name has other permissions."; exit 1; }
done
echo 'All files have the correct permissions.'
"""
NOTEBOOKS_SETUP = """#!/bin/bash
mkdir -p test_environment/week1/models test_environment/week2
cd test_environment || exit 1
for name in first_failed week1/train_failed week1/models/large_failed week1/train week2/plot; do
    echo "{\\"cells\\": [], \\"name\\": \\"$name\\"}" >"$name.ipynb"
done
echo text >week2/failed.txt
"""
NOTEBOOKS_EVAL = """#!/bin/bash
cd ~/test_environment || exit 1
wanted='first_failed.ipynb
week1/models/large_failed.ipynb
week1/train_failed.ipynb'
found=$(cd fails && find . -type f -printf '%P\\n' | sort)
[ "$found" = "$wanted" ] || { echo "Other files: $found"; exit 1; }
for name in $wanted; do cmp "$name" "fails/$name" || { echo "Not copied: $name"; exit 1; }; done
echo 'Evaluation successful.'
"""
BREAKS_EVAL = r"""#!/bin/bash
printf '1<br/>\n2<br/>\n3<br/>\n' >/tmp/wanted.txt
cmp ~/output.txt /tmp/wanted.txt && echo 'Success: The task has been completed correctly.'
"""
COPIES_SETUP = """#!/bin/bash
echo 'the first file' >file1
echo 'the second file' >file2
mkdir -p dir1 dir2 dir3
"""
COPIES_EVAL = """#!/bin/bash
for name in . dir1 dir2 dir3; do
    cmp -s "$name/file1" <(echo 'the first file') || { echo "Error: no file1 in $name."; exit 1; }
done
for name in dir1 dir2 dir3; do echo "Success: file1 exists in $name."; done
"""


def photos(*paths: Path) -> None:
    from PIL import Image

    for path, colour in zip(paths, ("orange", "navy", "teal", "maroon", "olive"), strict=False):
        Image.new("RGB", (320, 200), colour).save(path)


def scripts(*texts: str) -> Callable[..., None]:
    def write(*paths: Path) -> None:
        for path, text in zip(paths, texts, strict=True):
            path.write_text(text)

    return write


BUILDERS = {
    "23393935-50c7-4a86-aeea-2b78fd089c5c": photos,
    "37887e8c-da15-4192-923c-08fa390a176d": scripts(OLD_FILES_SETUP, OLD_FILES_EVAL),
    "4d117223-a354-47fb-8b45-62ab1390a95f": scripts(PERMISSIONS_SETUP, PERMISSIONS_EVAL),
    "5c1075ca-bb34-46a3-a7a0-029bd7463e79": scripts(NOTEBOOKS_SETUP, NOTEBOOKS_EVAL),
    "5ced85fc-fa1a-4217-95fd-0fb530545ce2": scripts(BREAKS_EVAL),
    "5ea617a3-0e86-4ba6-aab2-dac9aa2e8d57": photos,
    "6f56bf42-85b8-4fbb-8e06-6c44960184ba": scripts(COPIES_SETUP, COPIES_EVAL),
}
