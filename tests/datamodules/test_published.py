"""Published trajectories as demonstrations: small files of the three forms, and what is wrong in one, by its place."""

import base64
import io
import json

import pytest
from PIL import Image

from arpo.agent.actions import Click, Drag, Fail, Finished, Hotkey, Hover, Press, Scroll, TypeText, Wait
from arpo.agent.prompt import GRAMMARS
from arpo.agent.pyautogui_source import read_pyautogui
from arpo.datamodules.published import PublishedCollector, published_tasks
from arpo.errors import ActionParseError, ConfigError
from arpo.types import Outcome

SIZE = (280, 140)
FULL = (3136, 280 * 140)
"""Limits in which the model sees such a picture in its own pixels."""


def picture(kind="PNG", shade=0):
    out = io.BytesIO()
    Image.new("RGB", SIZE, (shade, 0, 0)).save(out, kind)
    return out.getvalue()


AGENTNET = {
    "task_id": "t1",
    "instruction": "Open the settings",
    "traj": [
        {"index": 0, "image": "0.png", "value": {"code": "pyautogui.click(x=0.5, y=0.1)", "thought": "I look."}},
        {"index": 1, "image": "1.png", "value": {"code": "pyautogui.moveTo(x=0.25, y=0.5)\npyautogui.scroll(-3)"}},
        {"index": 2, "image": "1.png", "value": {"code": "computer.terminate(status='success')"}},
    ],
    "task_completed": False,
}
ASKS = "<image>\nPlease generate the next move according to the ui screenshot, instruction and previous actions.\n\n"


def aguvis_step(image, code, goal="find bread", previous="None"):
    asked = f"{ASKS}Instruction: {goal}\n\nPrevious actions:\n{previous}\n"
    turns = [
        ("human", asked, {}),
        ("gpt", "Action: do it\n", {"recipient": "all"}),
        ("gpt", code, {"recipient": "os"}),
    ]
    return {"image": image, "conversations": [{"from": role, "value": text, **more} for role, text, more in turns]}


AGUVIS = [
    aguvis_step("7_1.jpg", "pyautogui.write(message='bread')", previous="Step 1: click"),
    aguvis_step("7_0.jpg", "pyautogui.click(x=0.1, y=0.2)"),
    aguvis_step("8_0.jpg", "mobile.home()"),
    aguvis_step("7_0.jpg", "pyautogui.hotkey(keys=['ctrl', 'f'])", goal="find milk"),
]


def shown(shade):
    url = f"data:image/png;base64,{base64.b64encode(picture(shade=shade)).decode()}"
    return {"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}], "loss_mask": 0}


BROKEN = shown(2)["content"][0]["image_url"]["url"].replace("base64,", "base64,!!!!")


def said(text):
    return {"role": "assistant", "content": text, "loss_mask": 1}


UI_TARS = [
    {"role": "user", "content": "You are a GUI agent.\n\n## User Instruction\nBuy a CD", "loss_mask": 0},
    said("Action: click(start_box='<|box_start|>(495,30)<|box_end|>')"),
    shown(1),
    said("Thought: There it is.\nAction: click(start_box='<|box_start|>(500,500)<|box_end|>')"),
    shown(2),
    said("Action: finished(content='done')"),
]


@pytest.fixture
def written(tmp_path):
    """Writes a file and its pictures, and gives the episodes by their ids, as the collector gives them."""
    for name, kind in [
        ("0.png", "PNG"),
        ("1.png", "PNG"),
        ("7_0.jpg", "JPEG"),
        ("7_1.jpg", "JPEG"),
        ("8_0.jpg", "JPEG"),
    ]:
        (tmp_path / name).write_bytes(picture(kind))

    def write(form, *records, grammar="ui_tars", **options):
        file = tmp_path / ("file.json" if form == "aguvis" else "file.jsonl")
        file.write_text("\n".join(each if isinstance(each, str) else json.dumps(each) for each in records), "utf-8")
        how = {"max_steps": 5, "family": "qwen2_5_vl", "image_limits": FULL, "success_threshold": 0.5} | options
        found = PublishedCollector(**how, grammar=grammar).collect(published_tasks(str(file), form), 1)
        return {each.task_id: each for row in found for each in row}

    return write


def test_an_episode_of_agentnet_is_what_it_did_in_pixels_of_its_pictures(written):
    (made,) = written("agentnet", AGENTNET, "").values()
    assert (made.id, made.task_id, made.instruction) == ("demonstration-0/0/0", "t1", "Open the settings")
    assert (made.outcome, made.task_reward) == (Outcome.FINISHED, 0.0)
    actions = [GRAMMARS["ui_tars"].parse(step.response) for step in made.steps]
    # 0.5 of 280 and 0.1 of 140 pixels; the move is the place of the wheel
    assert [each.actions for each in actions] == [(Click(140, 14),), (Scroll("down", 70, 70),), (Finished(),)]
    assert [each.thought for each in actions] == ["I look.", "", ""]
    assert made.steps[0].action == "click(start_box='(140,14)')"
    assert {(step.width, step.height) for step in made.steps} == {SIZE}
    assert set(made.screenshots.values()) == {picture()}


def test_points_are_those_of_the_picture_as_the_model_sees_it_and_the_grammar_is_the_prompts(written):
    (made,) = written("agentnet", AGENTNET, grammar="computer_use", image_limits=(3136, 11760)).values()
    (click,) = GRAMMARS["computer_use"].parse(made.steps[0].response).actions
    assert click == Click(70, 6)  # seen as 140 x 56: half of 140, a tenth of 56
    assert made.steps[0].action == "click(start_box='(140,14)')"


def test_steps_of_aguvis_are_episodes_by_picture_and_instruction_and_what_is_not_ours_is_left_out(written, caplog):
    made = written("aguvis", AGUVIS)
    found = {each.instruction: [step.action for step in each.steps] for each in made.values()}
    assert found == {
        "find bread": ["click(start_box='(28,28)')", "type(content='bread')"],
        "find milk": ["hotkey(key='ctrl f')"],
    }
    assert all(png.startswith(b"\x89PNG") for each in made.values() for png in each.screenshots.values())
    assert "1 published episodes are left out" in caplog.text
    assert "mobile.home(): no action of ours is that call" in caplog.text
    assert written("aguvis", AGUVIS, max_steps=1).keys() < made.keys()


def test_messages_of_ui_tars_are_an_episode_of_the_responses_behind_pictures(written):
    (made,) = written("ui_tars", UI_TARS).values()
    assert made.instruction == "Buy a CD"
    assert [step.action for step in made.steps] == ["click(start_box='(140,70)')", "finished(content='done')"]
    assert GRAMMARS["ui_tars"].parse(made.steps[0].response).thought == "There it is."
    assert len(made.screenshots) == 2


def changed(record, *keys, to):
    made = json.loads(json.dumps(record))
    inner = made
    for key in keys[:-1]:
        inner = inner[key]
    if to is None:
        del inner[keys[-1]]
    else:
        inner[keys[-1]] = to
    return made


WRONG = [
    ("agentnet", (AGENTNET, "{"), r"file\.jsonl, line 2 is no JSON"),
    ("agentnet", (changed(AGENTNET, "task_id", to=None),), r"line 1: \.task_id must be a str"),
    ("agentnet", (changed(AGENTNET, "traj", to=[]),), r"line 1: \.traj must be a list"),
    ("agentnet", (changed(AGENTNET, "traj", 1, "image", to=3),), r"line 1: traj\[1\]\.image must be a str"),
    ("agentnet", (changed(AGENTNET, "traj", 0, "value", "code", to=None),), r"line 1: traj\[0\]\.value\.code must be"),
    ("agentnet", (AGENTNET, AGENTNET), r"line 2: .*the episode t1 is there twice"),
    ("agentnet", (changed(AGENTNET, "traj", 0, "image", to="9.png"),), r"traj\[0\].*picture '9\.png' cannot be"),
    (
        "agentnet",
        (changed(AGENTNET, "traj", 0, "value", "code", to="pyautogui.click(x=140, y=14)"),),
        r"line 1: traj\[0\]\.value\.code: .*from 0 to 1",
    ),
    ("aguvis", ({"image": "7_0.jpg"},), r"file\.json must be a list"),
    ("aguvis", ([changed(AGUVIS[0], "conversations", to=None)],), r"file\.json\[0\]\.conversations must be a list"),
    ("aguvis", ([AGUVIS[0], changed(AGUVIS[1], "image", to=None)],), r"file\.json\[1\]\.image must be a str"),
    ("aguvis", ([changed(AGUVIS[0], "conversations", 0, "value", to="hi")],), r"json\[0\]\.conversations must be"),
    ("ui_tars", (UI_TARS[:2],), "line 1: messages must have an instruction, and a response behind"),
    ("ui_tars", (changed(UI_TARS, 2, "content", to="<|vision_start|><|image_pad|>"),), r"\[2\]\.content stands for"),
    ("ui_tars", (changed(UI_TARS, 3, "content", to="Action: click("),), r"line 1\[3\]\.content: "),
    ("ui_tars", (changed(UI_TARS, 2, "content", 0, "image_url", to={}),), r"1\[2\]\[0\]\.image_url must be a dict"),
    ("ui_tars", (changed(UI_TARS, 4, "content", 0, "image_url", to={"url": "x"}),), r"1\[4\]\[0\]\.image_url\.url: "),
    ("ui_tars", (changed(UI_TARS, 4, "content", 0, "image_url", to={"url": BROKEN}),), "base64"),
    ("agentnet", (f"[{'1' * 5000}]",), r"line 1 is no JSON: Exceeds the limit"),
    ("agentnet", (changed(AGENTNET, "instruction", to="\ud800"),), r"line 1 is no JSON: .*surrogates not allowed"),
    ("agentnet", (changed(AGENTNET, "traj", 0, "image", to="/etc/hosts"),), r"traj\[0\]\.image: .*: it is not in "),
    ("agentnet", (changed(AGENTNET, "traj", 0, "image", to="a/../../0.png"),), r"traj\[0\]\.image: .*: it is not in "),
    ("aguvis", ([changed(AGUVIS[0], "image", to=f"{'1' * 5000}.png")],), r"json\[0\]\.image: .* File name too long"),
]  # fmt: skip


@pytest.mark.parametrize(("form", "records", "said"), WRONG, ids=[said[:60] for *_, said in WRONG])
def test_a_wrong_file_is_refused_by_file_line_and_field(written, form, records, said):
    with pytest.raises(ConfigError, match=said):
        written(form, *records)


@pytest.mark.parametrize(
    ("size", "kind", "said"), [((20_000, 20_000), "PNG", "bomb"), (SIZE, "EPS", "cannot identify")]
)
def test_a_picture_that_is_vast_or_a_program_is_refused(written, tmp_path, size, kind, said):
    Image.new("1" if kind == "PNG" else "RGB", size).save(tmp_path / "0.png", kind)
    with pytest.raises(ConfigError, match=rf"line 1: traj\[0\]\.image: the picture '0\.png' cannot be used: .*{said}"):
        written("agentnet", AGENTNET)


SOURCE = [
    ("pyautogui.doubleClick(x=0.5, y=0.5)", (Click(50, 100, count=2),)),
    ("pyautogui.rightClick(0.5, 0.5)", (Click(50, 100, "right"),)),
    ("pyautogui.click()", (Click(),)),
    ("pyautogui.moveTo(x=0.1, y=0.1)\npyautogui.dragTo(x=0.5, y=0.5, button='left')", (Drag(10, 20, 50, 100),)),
    ("pyautogui.dragTo(from_coord=[0.1, 0.1], to_coord=[0.5, 0.5])", (Drag(10, 20, 50, 100),)),
    ("pyautogui.scroll(page=-0.26)", (Scroll("down"),)),
    ("pyautogui.moveTo(0.1, 0.1)\npyautogui.scroll(-3, x=0.5, y=0.5)", (Hover(10, 20), Scroll("down", 50, 100))),
    ("pyautogui.click(0.5, 0.5, 2)", (Click(50, 100, count=2),)),
    ("pyautogui.hscroll(2)", (Scroll("right"),)),
    ("pyautogui.write('it''s')", (TypeText("its"),)),
    ("pyautogui.press(keys=['tab', 'Return'])", (Press("tab"), Press("enter"))),
    ("pyautogui.press('enter')", (Press("enter"),)),
    ("pyautogui.hotkey('ctrl', 'V')", (Hotkey(("ctrl", "v")),)),
    ("computer.wait()", (Wait(),)),
    ("mobile.terminate(status='failure')", (Fail(),)),
]
REFUSED = [
    ("import os\nos.remove('x')", "unknown_action"),
    ("pyautogui.tripleClick(x=0.1, y=0.1)", "unknown_action"),
    ("pyautogui.scroll()", "unknown_action"),
    ("mobile.open_app(app_name='drupe')", "unknown_action"),
    ("pyautogui.press('down', presses=3)", "unknown_action"),
    ("pyautogui.click(x=0.1", "bad_syntax"),
    (f"pyautogui.click(x={'+'.join('1' * 700)}, y=0.1)", "bad_syntax"),
    (f"pyautogui.click(x=0x{'f' * 9999}, y=0.1)", "bad_syntax"),
    (r"pyautogui.write('\ud800')", "bad_argument"),
    ("pyautogui.click(x=__import__('os'), y=0.1)", "bad_argument"),
    ("pyautogui.click(x=0.1, y=1.5)", "bad_argument"),
    ("pyautogui.moveTo()", "bad_argument"),
    ("pyautogui.press('nokey')", "bad_argument"),
    ("", "no_action"),
]


@pytest.mark.parametrize(("source", "actions"), SOURCE)
def test_source_is_actions_in_pixels(source, actions):
    assert read_pyautogui(source, 100, 200) == actions


@pytest.mark.parametrize(("source", "kind"), REFUSED)
def test_source_that_is_something_else_is_refused_and_nothing_of_it_is_run(source, kind):
    with pytest.raises(ActionParseError) as refused:
        read_pyautogui(source, 100, 200)
    assert refused.value.kind == kind
