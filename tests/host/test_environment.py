import json
import os
import socket
import subprocess
import sys

import httpx
import pytest

from arpo.errors import ConfigError
from arpo.host.environment import check_cluster, cluster_address, recorded, spare_loopback
from tests.envs.osworld.guest import running_guest
from tests.forks import ROOT
from tests.run.chinese import PREFIX

LATIN = "en_US.ISO-8859-1"


RECORDED = """
    RAY_ADDRESS HTTP_PROXY no_proxy LC_ALL LANG TZ PYTHONHASHSEED PYTHONOPTIMIZE TMPDIR OMP_NUM_THREADS HF_HOME
    CUDA_VISIBLE_DEVICES TRANSFORMERS_CACHE VLLM_USE_V1 NCCL_DEBUG PYTORCH_CUDA_ALLOC_CONF LD_PRELOAD
    CUBLAS_WORKSPACE_CONFIG DOCKER_HOST WORLD_SIZE
"""
OTHERS = "HOME PATH USER SSH_AUTH_SOCK MY_PASSWORD AWS_SECRET_ACCESS_KEY"


def test_variables_that_can_change_a_run_are_recorded_and_no_others():
    given = dict.fromkeys([*RECORDED.split(), *OTHERS.split()], "value")
    assert recorded(given) == dict.fromkeys(sorted(RECORDED.split()), "value")


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("WANDB_API_KEY", "1", "(hidden)"),
        ("RAY_AUTH_TOKEN", "1", "(hidden)"),
        ("TOKENIZERS_PARALLELISM", "false", "false"),
        ("HTTPS_PROXY", "http://me:word@proxy:3128/", "http://(hidden)@proxy:3128/"),
        ("HTTPS_PROXY", "http://proxy:3128", "http://proxy:3128"),
        ("HTTP_PROXY", "me:word@proxy:3128", "(hidden)@proxy:3128"),
        ("HTTP_PROXY", "http://me:wo/rd@proxy", "http://(hidden)@proxy"),
        ("HTTP_PROXY", "http://me:w@r#d@proxy", "http://(hidden)@proxy"),
        ("ARPO_HOSTS", "http://a http://me:word@b", "http://(hidden)@b"),
        ("ARPO_NOTE", "hf_abcdefghijklmnopqrst", "(hidden)"),
        ("WANDB_BASE_URL", "https://host/?api_key=abc", "(hidden)"),
        ("RAY_JOB_CONFIG_JSON_ENV_VAR", '{"env_vars": {"HF_TOKEN": "x"}}', "(hidden)"),
        ("PYTHONPATH", "/opt/monkey/keys/lib", "/opt/monkey/keys/lib"),
        ("ARPO_PWD", "word", "(hidden)"),
    ],
)
def test_secrets_are_hidden(name, value, shown):
    assert recorded({name: value}) == {name: shown}


@pytest.mark.parametrize(
    ("address", "problem"),
    [
        ("127.0.0.1:9", "leads to no Ray cluster: .*refused"),
        ("ray://127.0.0.1:9", "leads to no Ray cluster"),
        ("nowhere.invalid:6379", "leads to no Ray cluster"),
        ("127.0.0.1", r"is no HOST:PORT"),
        ("127.0.0.1:ray", r"is no HOST:PORT"),
        ("127.0.0.1:99999", "leads to no Ray cluster"),
        ("[::1]:9", "leads to no Ray cluster"),
    ],
)
def test_a_cluster_that_is_not_there_is_named_by_its_variable(monkeypatch, address, problem):
    monkeypatch.setenv("RAY_ADDRESS", address)
    with pytest.raises(ConfigError, match=problem) as raised:
        check_cluster()
    assert f"RAY_ADDRESS={address} " in str(raised.value)
    assert "`unset RAY_ADDRESS`" in str(raised.value)


def test_a_cluster_that_listens_is_let_through_and_a_ray_of_our_own_is_none(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{server.getsockname()[1]}")
        check_cluster()
    for value, address in (("", ""), (" ", ""), ("local", ""), ("auto", "auto")):
        monkeypatch.setenv("RAY_ADDRESS", value)
        assert cluster_address() == address
        check_cluster()


@pytest.mark.parametrize(
    ("lower", "upper", "after"),
    [
        ("", "", "127.0.0.1,localhost,::1"),
        ("*", "*", "*"),
        ("a.org, localhost", "b.org,a.org", "a.org,localhost,b.org,127.0.0.1,::1"),
    ],
)
def test_loopback_is_added_to_what_either_variable_lets_be_reached_without_a_proxy(monkeypatch, lower, upper, after):
    monkeypatch.setenv("no_proxy", lower)
    monkeypatch.setenv("NO_PROXY", upper)
    spare_loopback()
    spare_loopback()
    assert (os.environ["no_proxy"], os.environ["NO_PROXY"]) == (after, after)


def test_a_dead_proxy_keeps_nobody_from_this_machine(monkeypatch):
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.setenv(name, "")
    with running_guest() as server:
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{server.address}/platform")
        spare_loopback()
        assert httpx.get(f"{server.address}/platform").status_code == 200


@pytest.fixture(scope="session")
def latin(tmp_path_factory) -> dict[str, str]:
    """The environment of a host whose locale is ISO-8859-1; such a locale is compiled where there is none."""
    place = tmp_path_factory.mktemp("locales")
    compile_it = ["localedef", "-i", "en_US", "-f", "ISO-8859-1", str(place / LATIN)]
    made = subprocess.run(compile_it, capture_output=True, check=False)
    left_out = ("PYTHONUTF8", "PYTHONIOENCODING", "LANG", "LC_ALL")
    kept = {name: value for name, value in os.environ.items() if name not in left_out}
    environment = kept | {"LOCPATH": str(place), "LC_ALL": LATIN}
    ask = [sys.executable, "-c", "import sys; print(sys.getfilesystemencoding())"]
    if subprocess.check_output(ask, env=environment, encoding="ascii").strip() != "iso8859-1":
        pytest.skip(f"no locale {LATIN} here: {made.stderr.decode(errors='replace').strip()[:200]}")
    return environment


SAYS = """
import json, subprocess, sys
from pathlib import Path
from arpo.host.environment import set_up_process
set_up_process()
Path(sys.argv[1]).write_text(sys.argv[2])
child = "import sys; print(sys.flags.utf8_mode, open(sys.argv[1]).read())"
said = subprocess.run([sys.executable, "-c", child, sys.argv[1]], capture_output=True, text=True).stdout
print(json.dumps([sys.getfilesystemencoding(), sys.argv[2], said.strip(), sys.argv[1:]]))
print(sys.argv[2])
"""


def test_words_names_output_and_children_are_in_utf8_under_another_locale(latin, tmp_path):
    script, path = tmp_path / "program.py", tmp_path / "文件.txt"
    script.write_text(SAYS, encoding="utf-8")
    words = [str(path), "点击 é 🙂", "a b"]
    command = [sys.executable, script, *map(str.encode, words)]  # the tests' own locale may lack the letters
    done = subprocess.run(command, env=latin | {"PYTHONPATH": str(ROOT)}, capture_output=True, check=True)
    first, second = done.stdout.decode().splitlines()
    assert json.loads(first) == ["utf-8", "点击 é 🙂", "1 点击 é 🙂", words]
    assert second == "点击 é 🙂"
    with open(str(path).encode(), encoding="utf-8") as file:
        assert file.read() == "点击 é 🙂"


READS = """
import sys
from pathlib import Path
from arpo.envs.guest.tasks import load_task
from arpo.host.files import write_atomically
root = Path(sys.argv[1])
write_atomically(root / "copy", load_task(root, "office", "task").instruction)
"""


def test_an_instruction_keeps_its_letters_where_the_locale_has_none_of_them(latin, tmp_path):
    """A library has no entry point: what it reads and writes names its encoding."""
    task = {"id": "1", "instruction": "点击“保存”，é", "config": [], "evaluator": {"func": "infeasible"}}
    file = tmp_path / "examples" / "office" / "task.json"
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps(task, ensure_ascii=False), encoding="utf-8")
    subprocess.run([sys.executable, "-c", READS, tmp_path], cwd=ROOT, env=latin, check=True)
    assert (tmp_path / "copy").read_text(encoding="utf-8") == task["instruction"]
    code = "from arpo.host.environment import set_up_process; set_up_process(); print('\\u70b9')"
    command = [sys.executable, "-c", code]  # whose output cannot be shown, and is escaped
    assert subprocess.check_output(command, cwd=ROOT, env=os.environ | {"PYTHONIOENCODING": "ascii"}) == b"\\u70b9\n"


def test_a_program_searches_for_garbage_less_often_than_python_does():
    code = "from arpo.host.environment import *; import gc; set_up_process(); print(gc.get_threshold()[0])"
    assert int(subprocess.check_output([sys.executable, "-c", code], cwd=ROOT)) == 20_000


@pytest.mark.slow
@pytest.mark.long
def test_a_run_on_such_a_host_keeps_what_it_was_told(latin, tmp_path):
    small = ["datamodule.steps=3", "datamodule.per_task=1", "tasks.train.count=1", "env.size=1"]
    words = ["experiment=warmstart_fake", *small, "tasks.train._target_=tests.run.chinese.chinese_tasks"]
    output = tmp_path / "输出"
    done = subprocess.run(
        [sys.executable, "train.py", *words, f'paths.output="{output}"', "name='名字'"],
        cwd=ROOT,
        env=latin | {"PYTHONPATH": str(ROOT), "TZ": "Asia/Shanghai", "HTTP_PROXY": "http://127.0.0.1:9"},
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    (run,) = (output / "名字").iterdir()
    assert str(output) in done.stdout.decode() + done.stderr.decode()
    assert str(output) in (run / "config.yaml").read_text(encoding="utf-8")
    stored = b"".join(path.read_bytes() for path in (run / "demonstrations").rglob("*.jsonl"))
    assert json.loads(stored.splitlines()[0])["instruction"].startswith(PREFIX)
    (start,) = json.loads((run / "run.json").read_text(encoding="utf-8"))["starts"]
    assert start["environment"]["LC_ALL"] == LATIN
    assert start["environment"]["TZ"] == "Asia/Shanghai"
    assert start["started"].endswith("+00:00")
