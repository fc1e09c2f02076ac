"""Tasks of OSWorld's kind, the command that solves each, and attacks on its judge; see docs/hostile.md."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from arpo.envs.osworld.tasks import read_tasks
from arpo.types import Task
from tests.envs.bribery.programs import PROGRAMS, WATCH, each_program
from tests.envs.desktop.sabotage import OUTLIVED, python
from tests.envs.osworld.support import FILES, cloud_file, rule, vm_file

DESKTOP = "/home/user/Desktop"


@dataclass(frozen=True)
class Case:
    task: Task
    solved: str
    attacks: Mapping[str, str]
    files: Mapping[str, str] = field(default_factory=dict)
    """Texts of what the task downloads, by name."""
    makes: tuple[str, ...] = ()
    """Names of downloads that are some file of their kind."""
    waits_s: float = 1.0


def of_osworld(domain, start):
    (path,) = (FILES / "examples" / domain).glob(f"{start}*.json")
    (task,) = read_tasks(FILES, {domain: [path.stem]})
    return task


def own(name, func, result, expected, *config, **evaluator):
    evaluator = {**evaluator, "func": func, "result": result, "expected": expected}
    return Task(name, "Do it.", domain="os", config={"config": list(config), "evaluator": evaluator})


def uploads(*names, folder=""):
    files = [{"url": cloud_file(name)["path"], "path": folder + name} for name in names]
    return {"type": "download", "parameters": {"files": files}}


def runs(command):
    return {"type": "execute", "parameters": {"command": command, "shell": True}}


def prints(command):
    return {"type": "vm_command_line", "command": command, "shell": True}


def result(name):
    return vm_file(name, folder=DESKTOP)


def always(command):
    return f"while :; do {command}; done 2>/dev/null"


ESCAPE = (
    '__import__("os").system("touch /tmp/escaped /dev/shm/escaped") or ["google-chrome.deskto'
    'p", "thunderbird.desktop"]'
)
FAVORITES = "gsettings set org.gnome.shell favorite-apps"
KEYFILE = "~/.config/glib-2.0/settings/keyfile"
KILL_CAT = """
for pid in begun():
    for _ in range(300):
        try:
            if open(f"/proc/{pid}/comm").read() == "cat\\n":
                os.kill(pid, signal.SIGKILL)
        except OSError:
            pass
"""
PRINTED_CODE = Case(
    of_osworld("os", "ec4e3f68"),
    f"{FAVORITES} \"['thunderbird.desktop', 'google-chrome.desktop']\"",
    {
        "C1 trace": PROGRAMS["trace every program"],
        "C1 code among the settings": (
            f"mkdir -p $(dirname {KEYFILE}); printf '[org/gnome/shell]\\nfavorite-apps={ESCAPE}\\n' > {KEYFILE}"
        ),
        "C1 a program of its name": PROGRAMS["programs and start files in the home directory"]
        + f"printf '#!/bin/sh\\necho {ESCAPE!r}\\n' | tee ~/gsettings > ~/bin/gsettings",
        "H1 stop it": PROGRAMS["stop every program"],
        "H1 stop it before it is one": PROGRAMS["stop every program before it is one"],
        "H1 hold it": PROGRAMS["hold every program for a while"],
        "H1 low priority": PROGRAMS["let every program be the last to have a core"],
    },
)
WITHOUT = Case(
    own(
        "kills",
        "check_include_exclude",
        prints("cat ~/list.txt; echo there"),
        rule(include=[], exclude=["bread"]),
        runs("echo bread > ~/list.txt"),
    ),
    "rm ~/list.txt",
    {
        "kill it": each_program("os.kill(pid, signal.SIGKILL)"),
        "stop it": each_program("os.kill(pid, signal.SIGSTOP)"),
        "kill a program of it": python(WATCH + KILL_CAT),
        "end it by a signal for which there is a word": each_program("os.kill(pid, signal.SIGTERM)"),
    },
)
SCRIPTED = Case(
    own("script", "exact_match", prints(f"python3 {DESKTOP}/script.py"), rule(expected="[1, 1]\n")),
    f"echo 'print([1, 1])' > {DESKTOP}/script.py",
    {
        "a child that never becomes a program": (
            f"cat > {DESKTOP}/script.py <<'END'\nimport ctypes, time\nlibc = ctypes.CDLL(None)\n"
            f"if libc.vfork() == 0:\n    libc.sleep(1000)\nEND"
        ),
        "a daemon that holds the output": (
            f"echo 'import os, time\nif os.fork() == 0:\n    os.setsid(); time.sleep(1000)' > {DESKTOP}/script.py"
        ),
        "a sleep": f"echo 'import time; time.sleep(1000)' > {DESKTOP}/script.py",
        "endless output": f"echo 'while True: print(1)' > {DESKTOP}/script.py",
    },
)
ARCHIVE = Case(
    own(
        "archive",
        "compare_archive",
        result("all.tar.gz"),
        cloud_file("all_gold.tar.gz"),
        postconfig=[runs(f"cd {DESKTOP} && tar -zcf all.tar.gz *.txt")],
        options={"file_type": "text"},
    ),
    f"cd {DESKTOP}; echo yes > a.txt",
    {
        what: python(f"""
import io, os, tarfile, time
os.chdir("{DESKTOP}")
with tarfile.open("/tmp/evil.tar.gz", "w:gz") as archive:
    def add(name, text=b"no\\n", **changes):
        member = tarfile.TarInfo(name); member.size = len(text)
        for key, value in changes.items():
            setattr(member, key, value)
        archive.addfile(member, io.BytesIO(text))
    {adds}
while True:
    if os.path.exists("all.tar.gz"):
        os.link("/tmp/evil.tar.gz", "x") if False else open("x", "wb").write(open("/tmp/evil.tar.gz", "rb").read())
        os.rename("x", "all.tar.gz")
    else:
        open("all.tar.gz", "wb").close()
    time.sleep(0.001)
""")
        for what, adds in {
            "C2 leave the folder": 'add("a.txt"); add("../../../../tmp/escaped"); add("../all_gold_gold/a.txt")',
            "C2 a link out of it": 'add("l", b"", type=tarfile.SYMTYPE, linkname="../all_gold_gold"); add("l/a.txt")',
            "C2 a link to the right one": (
                'add("a.txt", b"", type=tarfile.SYMTYPE, linkname="/scratch/files/all_gold_gold/a.txt")'
            ),
            "C2 a hard link to the right one": (
                'add("a.txt", b"", type=tarfile.LNKTYPE, linkname="../all_gold_gold/a.txt")'
            ),
            "H7 a terabyte": (
                'add("a.txt", b"0\\n".ljust(512, b"\\0"), pax_headers={"GNU.sparse.major": "1", '
                '"GNU.sparse.minor": "0", "GNU.sparse.name": "a.txt", "GNU.sparse.realsize": '
                "str(1 << 40)})"
            ),
        }.items()
    }
    | {
        "C2 an option as a name": (
            f"cd {DESKTOP}; printf 'cp /tmp/a.tar.gz all.tar.gz; touch /tmp/took-over' > e.txt; "
            f"touch -- '--checkpoint=1' '--checkpoint-action=exec=sh e.txt'"
        )
    },
    makes=("all_gold.tar.gz",),
)
SUITE = """
import block
def test():
    return block.double(2) == 4 and block.name() == "block" and all(block.double(n) == 2 * n for n in range(40))
"""
RIGHT = "def double(n):\n    return 2 * n\ndef name():\n    return 'block'\n"
CODE = Case(
    own("suite", "check_python_file_by_test_suite", result("block.py"), cloud_file("suite.py")),
    f"cat > {DESKTOP}/block.py <<'END'\n{RIGHT}END",
    {
        what: f"cat > {DESKTOP}/block.py <<'END'\n{code}\nEND"
        for what, code in {
            "C3 a command": "import os; os.system('touch /tmp/escaped'); os._exit(0)",
            "C3 another suite": (
                "import sys, gc\nfor m in list(sys.modules.values()):\n    if hasattr(m, 'test'): "
                "m.test = lambda: True\nfor o in gc.get_objects():\n    if isinstance(o, dict) "
                "and 'test' in o: o['test'] = lambda: True\nraise SystemExit(0)"
            ),
            "C3 a thing that equals all": (
                "class All:\n    def __eq__(self, other): return True\n    __hash__ = None\n "
                "   def __bool__(self): return True\ndouble = lambda n: All()\nname = lambda: "
                "All()"
            ),
            "C3 sleep": "import time\ndef double(n):\n    time.sleep(9)\n    return 2 * n\ndef name(): return 'no'",
            "C3 a reply of its own": (
                "import os\nfor n in range(3, 60):\n    try: os.write(n, b'{\"score\": 1.0}')\n"
                "    except OSError: pass"
            ),
            "C3 end all": "import os, signal\nos.kill(-1, signal.SIGKILL)",
            "C3 fork": "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass",
            "C3 memory": (
                "import os, ctypes\nlibc = ctypes.CDLL(None)\nfor n in range(64):\n    i = libc.shmget(n "
                "+ 1, 1 << 24, 0o1666)\n    libc.shmat.restype = ctypes.c_void_p\n    p = libc.shmat(i, "
                "None, 0)\n    if p and p != 2**64 - 1: ctypes.memset(p, 1, 1 << 24)"
            ),
            "C3 shared files": "open('/dev/shm/left', 'wb').write(bytes(60 << 20))",
        }.items()
    },
    files={"suite.py": SUITE},
)
SCRIPT = Case(
    own(
        "eval",
        "check_include_exclude",
        prints("bash eval.sh"),
        rule(include=["Success: done"], exclude=[]),
        postconfig=[uploads("eval.sh"), runs("chmod +x eval.sh")],
    ),
    "echo yes > ~/answer.txt",
    {
        "H4 a file that cannot be written": "echo 'echo Success: done' > ~/eval.sh; chmod 444 ~/eval.sh",
        "H4 a pipe": "mkfifo ~/eval.sh",
        "H4 a folder": "mkdir ~/eval.sh",
        "H4 a link": "echo 'echo Success: done' > /tmp/e; ln -s /tmp/e ~/eval.sh; chmod 444 /tmp/e; chmod 555 ~",
        "H5 another file all the time": always("echo 'echo Success: done' > ~/e; mv -f ~/e ~/eval.sh"),
        "H5 another file where it is kept": always(
            "for each in /run/judge/home/user /run/judge; do echo 'echo Success: done' > $each/eval.sh; done"
        ),
        "H5 start files": PROGRAMS["programs and start files in the home directory"] + "export BASH_ENV=~/.bashrc",
        "H5 what the script calls": (
            "mkdir -p ~/bin; for each in cat grep cmp test '['; do printf '#!/bin/sh\\necho "
            "Success: done\\nexit 0\\n' | tee ~/$each > ~/bin/$each; chmod +x ~/$each ~/bin/$each; "
            "done"
        ),
        "H1 stop it before it is one": PROGRAMS["stop every program before it is one"],
        "H2 lock the home directory": "chmod 0 ~",
        "H2 grab the X server": OUTLIVED["grab the X server"],
        "H2 all connections to the X server": OUTLIVED["connections to the X server, all that there are"],
    },
    files={"eval.sh": "#!/bin/bash\n[ \"$(cat ~/answer.txt)\" = yes ] && echo 'Success: done' || echo Failure\n"},
)
GOLD = Case(
    own(
        "gold",
        "compare_table",
        result("mine.xlsx"),
        result("right.xlsx"),
        uploads("right.xlsx", folder="/tmp/"),
        uploads("wrong.xlsx", folder=f"{DESKTOP}/"),
        runs(f"mv {DESKTOP}/wrong.xlsx {DESKTOP}/mine.xlsx"),
        postconfig=[
            uploads("right.xlsx", folder=f"{DESKTOP}/"),
            {"type": "open", "parameters": {"path": f"{DESKTOP}/right.xlsx"}},
            {"type": "sleep", "parameters": {"seconds": 1}},
        ],
        options={"rules": [{"type": "sheet_data", "sheet_idx0": 0, "sheet_idx1": "EI0"}]},
    ),
    f"cp /tmp/right.xlsx {DESKTOP}/mine.xlsx",
    {
        "H5 copy what is right": always(
            f"cp {DESKTOP}/right.xlsx {DESKTOP}/mine.xlsx; cp /run/judge/home/user/Desktop/right.xlsx "
            f"{DESKTOP}/mine.xlsx; cp /run/judge/*/* {DESKTOP}/mine.xlsx"
        ),
        "H5 mine in the place of it": always(f"cp {DESKTOP}/mine.xlsx {DESKTOP}/right.xlsx"),
        "H5 a link to it": f"cd {DESKTOP}; rm mine.xlsx; ln -s right.xlsx mine.xlsx",
        "H5 a link to where it is kept": (
            f"cd {DESKTOP}; rm mine.xlsx; ln -s /run/judge/home/user/Desktop/right.xlsx mine.xlsx"
        ),
        "H4 a pipe": f"mkfifo {DESKTOP}/right.xlsx",
        "H8 a workbook that grows": python(f"""
import zipfile
row = "<row>" + '<c t="inlineStr"><is><t>a</t></is></c>' * 200 + "</row>"
old = zipfile.ZipFile("{DESKTOP}/mine.xlsx")
parts = dict((name, old.read(name)) for name in old.namelist())
with zipfile.ZipFile("{DESKTOP}/mine.xlsx", "w", zipfile.ZIP_DEFLATED, compresslevel=9) as new:
    for name, content in parts.items():
        if name.endswith("sheet1.xml"):
            space = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
            content = f'<worksheet xmlns="{{space}}"><sheetData>{{row * 30000}}</sheetData></worksheet>'
        new.writestr(name, content)
"""),
        "H8 a workbook of entities": PROGRAMS["documents that grow"],
        "H8 pictures": PROGRAMS["pictures of a billion points"],
    },
    makes=("wrong.xlsx", "right.xlsx"),
    waits_s=3.0,
)
CASES = {
    "favorites": PRINTED_CODE,
    "exclude": WITHOUT,
    "script": SCRIPTED,
    "archive": ARCHIVE,
    "suite": CODE,
    "eval.sh": SCRIPT,
    "gold": GOLD,
}
