"""The contract of a family, on a tiny model of each, and which family a checkpoint is of."""

import json
import math
import random
import re
import shutil

import pytest
import torch
from torch import nn
from transformers import AutoConfig, AutoTokenizer

from arpo.agent.actions import Click
from arpo.agent.ui_tars import parse_action
from arpo.errors import ConfigError
from arpo.models.checkpoint import CheckpointWeights
from arpo.models.collate import collate
from arpo.models.family import FAMILIES, family_named, family_of
from arpo.models.images import ImageProcessor
from arpo.models.policy import Policy
from arpo.models.tokenization import ChatTokenizer, TokenizedTrajectory
from tests.conftest import TINY_CORPUS
from tests.models.samples import assert_same, prepare, screenshot, trajectory

SIZES = ((112, 140), (1920, 1080))
PICTURES = ((0, (112, 140)), (1, (333, 200)), (2, (112, 140)), (3, (220, 150)))
"""Seeds and sizes: two pictures of one size apart from each other."""
SCREENS = ((160, 210), (640, 480), (1280, 720), (1920, 1080), (2560, 1440), (1080, 1920))


@pytest.fixture(scope="module", params=sorted(FAMILIES))
def family(request):
    return FAMILIES[request.param]


@pytest.fixture(scope="module")
def path(family, tmp_path_factory):
    return family.tiny.make(tmp_path_factory.mktemp("tiny"), corpus=TINY_CORPUS)


@pytest.fixture(scope="module")
def model(family, path):
    return family.model_class.from_pretrained(path).eval()


@pytest.fixture(scope="module")
def chat(path):
    return ChatTokenizer(path)


@pytest.fixture(scope="module")
def turns(path, chat):
    """The ids of two turns with a picture each, whose placeholders are as long, their places, patches and reader."""
    user = {"role": "user", "content": [{"type": "text", "text": "Click on the button."}, {"type": "image"}]}
    response = chat.encode_response("Action: wait()")
    lengths = iter([chat.image_tokens(*size) for size in SIZES])
    ids = [
        word
        for given in chat.first_prompt([user]) + response + chat.next_prompt(response)
        for word in [given] * (next(lengths) if given == chat.image_token_id else 1)
    ]
    images, whole = ImageProcessor(path), torch.tensor([ids])
    pictures = [images(*screenshot(seed, *size)) for seed, size in enumerate(SIZES)]
    return whole, whole == chat.image_token_id, pictures, images


def test_a_checkpoint_is_of_the_family_that_its_configuration_names_and_has_its_sizes(family, path, chat):
    assert family_of(path) is family_named(family.model_type) is family
    assert chat.family is ImageProcessor(path).family is family
    assert chat.pictures.sizes.factor == family.resize_factor
    least, most = family.pixels
    assert family.resize_factor**2 <= least < most
    config = AutoConfig.from_pretrained(path)
    assert 0 < family.picture_layers(config) <= config.vision_config.depth


@pytest.mark.parametrize("read", [family_of, ChatTokenizer, ImageProcessor, Policy, CheckpointWeights])
def test_a_checkpoint_of_no_known_family_is_refused_with_those_that_there_are(tiny_model, tmp_path, read):
    shutil.copytree(tiny_model, tmp_path, dirs_exist_ok=True)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    said = f"config.json: model_type must be one of {', '.join(FAMILIES)}, got 'llama'"
    with pytest.raises(ConfigError, match=re.escape(said)):
        read(tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{}", "model_type must be one of .*, got None"),
        ('{"model_type": "qwen3_vl_moe"}', "model_type must be one of .*, got 'qwen3_vl_moe'"),
        ('{"model_type": "qwen3_5_moe"}', "model_type must be one of .*, got 'qwen3_5_moe'"),
        ('{"model_type": ["qwen2_5_vl"]}', r"model_type must be one of .*, got \['qwen2_5_vl'\]"),
        ("[]", "model_type must be one of .*, got None"),
        ("{", "must say by its model_type what a checkpoint is"),
        (None, "must say by its model_type what a checkpoint is: .*No such file"),
    ],
    ids=str,
)
def test_a_configuration_that_names_no_model_is_refused_by_file(tmp_path, content, message):
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(ConfigError, match=rf"{re.escape(str(tmp_path / 'config.json'))}.* {message}|{message}"):
        family_of(tmp_path)


def test_each_weight_has_its_name_in_the_checkpoint(family, path, model):
    shapes = CheckpointWeights(path).shapes
    named = {family.checkpoint_name(name): tuple(weight.shape) for name, weight in model.named_parameters()}
    assert named == shapes
    assert {family.checkpoint_name(name) for name in shapes} == set(shapes)  # a name of theirs stays
    assert shapes[family.embedding] == tuple(model.get_input_embeddings().weight.shape)


def test_blocks_lie_side_by_side_and_hold_most_of_both_towers(family, model):
    blocks = family.blocks(model)
    modules = [module for block in blocks for module in block.modules()]
    assert len(set(modules)) == len(modules)
    for tower in (model.get_encoder("image"), model.get_decoder()):
        inside = [block for block in blocks if block in set(tower.modules())]
        assert len(inside) >= 2
    assert set(modules) < set(model.modules())


def test_lora_updates_the_linear_layers_of_the_language_model_s_blocks_and_no_other(family, model):
    targets = {name for name, _ in model.named_modules() if re.fullmatch(family.lora_targets, name)}
    decoder = set(model.get_decoder().layers.modules())
    linear = {name for name, module in model.named_modules() if isinstance(module, nn.Linear) and module in decoder}
    assert targets == linear
    assert targets


def test_positions_are_the_model_s_own(family, model, turns):
    ids, mask, pictures, images = turns
    grids = [picture.grid for picture in pictures]
    expected, _ = model.model.get_rope_index(ids, mask.int(), torch.tensor(grids))
    assert torch.equal(family.position_ids(mask[0], grids, images.merge_size), expected[:, 0])


@torch.no_grad()
def test_the_parts_together_compute_what_transformers_computes(family, path, model, turns):
    ids, mask, pictures, images = turns
    assert "pixel_values" not in family.generation_inputs(~mask, [], torch.float32)
    inputs = family.generation_inputs(mask, pictures, torch.float32)
    expected = model.model(input_ids=ids, attention_mask=torch.ones_like(ids), **inputs).last_hidden_state
    packed = [images.packed(*screenshot(seed, *size)) for seed, size in enumerate(SIZES)]
    ours = family.model_class.from_pretrained(path).eval()
    tower = family.tower(ours, images.mean, images.std)
    visual = tower(torch.cat([picture.pixels for picture in packed]), tuple(picture.grid for picture in packed))
    assert visual.shape == (int(mask.sum()), family.visual_width(ours.config))
    positions = family.position_ids(mask[0], [picture.grid for picture in packed], images.merge_size)
    embeddings = ours.get_input_embeddings()(ids)
    places = mask.flatten().nonzero().squeeze(1)
    hidden = family.hidden_states(ours, embeddings, visual, places, positions.unsqueeze(1))
    torch.testing.assert_close(hidden, expected, rtol=1e-4, atol=1e-5)
    assert dict(ours.named_parameters()).keys() == dict(model.named_parameters()).keys()


def test_texts_without_a_picture_are_scored_as_beside_one_and_the_tower_is_passed(family, path, chat):
    """With a tower that lies on many devices every rank has to enter it, and none of its weights gains anything."""
    prompt = chat.first_prompt([{"role": "user", "content": [{"type": "text", "text": "Click on the button."}]}])
    response = chat.encode_response("Action: wait()")
    ids = torch.tensor([*prompt, *response])
    sampled = torch.arange(len(ids)) >= len(prompt)
    spans = ((0, len(response)),)
    text = TokenizedTrajectory(ids, sampled, torch.zeros_like(sampled), (), torch.zeros(len(response)), spans)
    (shown,), screenshots = prepare(chat, trajectory(chat, (0,)))
    policy = Policy(path)
    (key,) = screenshots
    tokens = {key: policy.visual_tokens([policy.images.packed(key, screenshots[key])])[0]}
    expected = policy.action_logprobs(collate([text, shown], screenshots, policy.images)).logprobs[0]
    for features in (None, {}, tokens):
        found = policy.action_logprobs(collate([text, text], {}, policy.images, features)).logprobs
        torch.testing.assert_close(found, expected[expected != 0].expand(2, -1), rtol=1e-5, atol=1e-6)
    policy.action_logprobs(collate([text], {}, policy.images)).logprobs.sum().backward()
    assert all(not weight.grad.any() for weight in policy.vision.parameters())


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_visual_tokens_and_gradients_are_those_of_transformers(family, path, model, attention):
    images = ImageProcessor(path)
    plain = [images(*screenshot(seed, *size)) for seed, size in PICTURES]
    grids = torch.tensor([picture.grid for picture in plain])
    seen = model.model.visual(torch.cat([picture.pixel_values for picture in plain]), grid_thw=grids)
    expected = torch.cat([seen.pooler_output, *(seen.get("deepstack_features") or ())], dim=1)
    ours = family.model_class.from_pretrained(path, attn_implementation=attention).eval()
    tower = family.tower(ours, images.mean, images.std)
    packed = [images.packed(*screenshot(seed, *size)) for seed, size in PICTURES]
    tokens = tower(torch.cat([picture.pixels for picture in packed]), tuple(picture.grid for picture in packed))
    assert_same(tokens, expected)
    assert tokens.shape[1] == family.visual_width(ours.config)
    wanted, found = (dict(each.model.visual.named_parameters()) for each in (model, ours))
    gradients = torch.autograd.grad(expected.square().sum(), list(wanted.values()))
    own = torch.autograd.grad(tokens.square().sum(), [found[name] for name in wanted])
    for gradient, mine in zip(gradients, own, strict=True):
        assert_same(mine, gradient)


@pytest.mark.parametrize("screen", SCREENS, ids=str)
def test_clicks_that_the_model_writes_land_in_their_box(family, chat, screen):
    """A thousand boxes as small as the model's points allow, whose middle is written, read and clicked."""
    frame = family.frame(screen, chat.model_size(*screen))
    sides = zip(screen, (frame.model_width, frame.model_height), strict=True)
    side = max(4, *(2 * math.ceil(of / to) for of, to in sides))
    rng = random.Random(0)
    for _ in range(1000):
        left, top = rng.randrange(screen[0] - side), rng.randrange(screen[1] - side)
        middle = Click(left + side // 2, top + side // 2)
        click = frame.to_screen(parse_action(frame.to_model(middle).describe()))
        assert isinstance(click, Click)
        assert left <= click.x < left + side
        assert top <= click.y < top + side
    for corner in (Click(0, 0), Click(screen[0] - 1, screen[1] - 1)):
        back = frame.to_screen(frame.to_model(corner))
        assert max(abs(back.x - corner.x), abs(back.y - corner.y)) <= side // 2


def test_special_tokens_are_words_and_stand_around_each_picture(family, path, chat):
    tokenizer = AutoTokenizer.from_pretrained(path)
    special = set(tokenizer.convert_tokens_to_ids(list(family.never_sampled)))
    assert special <= set(tokenizer.get_added_vocab().values())
    assert chat.image_token_id in special
    assert chat.end_of_turn_id not in special
    ids = chat.first_prompt([{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image"}]}])
    at, around = ids.index(chat.image_token_id), family.around_image
    assert set(ids[at - around : at + around + 1]) <= special
    assert not {ids[at - around - 1], ids[at + around + 1]} & (special | {chat.image_token_id})
    assert chat.without_screenshot(ids) == ids[: at - around] + ids[at + around + 1 :]
