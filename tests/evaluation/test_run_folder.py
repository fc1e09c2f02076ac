"""The files of a run as crashes, people and other programs leave them."""

import json

import pytest

from arpo.evaluation.run_folder import RunFolder, read_folder

NOTHING = RunFolder(config={}, metrics=(), starts=(), evaluations={}, results={}, broken=())
RESULT = {"overall": {"success_rate": 0.5}}


def write(folder, files):
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())


WHOLE = {
    "config.yaml": "seed: 3\n",
    "metrics.jsonl": '{"step": 1, "a": 0.5}\n{"step": 2, "a": null}\n',
    "run.json": '{"starts": [{"status": "finished"}]}',
    "eval/iteration_000010.json": json.dumps({"held_out": RESULT}),
    "results.json": json.dumps({"all": RESULT}),
}


def test_what_a_run_says_is_read_and_an_evaluation_of_no_iteration_is_named(tmp_path):
    assert read_folder(tmp_path) == read_folder(tmp_path / "nowhere") == NOTHING
    write(tmp_path, WHOLE)
    assert read_folder(tmp_path) == RunFolder(
        config={"seed": 3},
        metrics=({"step": 1, "a": 0.5}, {"step": 2, "a": None}),
        starts=({"status": "finished"},),
        evaluations={10: {"held_out": RESULT}},
        results={"all": RESULT},
        broken=(),
    )
    write(tmp_path, {"eval/iteration_ten.json": json.dumps({"held_out": RESULT})})
    found = read_folder(tmp_path)
    assert (list(found.evaluations), found.broken) == ([10], ("eval/iteration_ten.json is of no iteration",))


DEEP = "[" * 100_000


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("config.yaml", "{"),
        ("config.yaml", ""),
        ("config.yaml", b"\xff\xfe\x00"),
        ("config.yaml", "[" * 5_000),
        ("config.yaml", '!!python/object/apply:os.system ["true"]'),
        ("run.json", "{"),
        ("run.json", '{"starts": [5]}'),
        ("run.json", DEEP),
        ("results.json", '{"all": {"overall": {"success_rate": "high"}}}'),
        ("eval/iteration_000010.json", '{"held_out": {}}'),
        ("eval/iteration_000010.json", DEEP),
    ],
)
def test_a_broken_file_is_named_and_the_others_are_read(tmp_path, name, text):
    write(tmp_path, WHOLE)
    whole = read_folder(tmp_path)
    write(tmp_path, {name: text})
    found = read_folder(tmp_path)
    assert found.broken == (f"{name} is broken",)
    fields = {"config.yaml": "config", "run.json": "starts", "results.json": "results"}
    for field in ("config", "metrics", "starts", "results", "evaluations"):
        broken = field == fields.get(name) or (field == "evaluations" and name == "eval/iteration_000010.json")
        assert getattr(found, field) == (getattr(NOTHING, field) if broken else getattr(whole, field))


@pytest.mark.parametrize(
    "line", ["not json", "[]", "null", "{}", '{"step": "1"}', '{"step": 2, "a": "high"}', '{"step": 2', DEEP]
)
def test_a_broken_line_of_metrics_is_named_and_the_last_one_may_be_a_part(tmp_path, line):
    write(tmp_path, {"metrics.jsonl": f'{{"step": 1, "a": 1}}\n{line}\n{{"step": 3, "a": 3}}\n{line[:-1]}'})
    found = read_folder(tmp_path)
    assert [each["step"] for each in found.metrics] == [1, 3]
    assert found.broken == ("line 2 of metrics.jsonl is broken",)


def test_a_number_that_no_float_can_hold_is_unknown(tmp_path):
    line = f'{{"step": 1, "a": 1e999, "b": NaN, "c": -Infinity, "d": 1{"0" * 400}, "e": -2}}'
    write(tmp_path, {"metrics.jsonl": line})
    assert read_folder(tmp_path).metrics == ({"step": 1, "a": None, "b": None, "c": None, "d": None, "e": -2},)
