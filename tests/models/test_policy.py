from collections import Counter
from functools import partial
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoProcessor, Qwen2_5_VLForConditionalGeneration

from arpo.models.collate import collate, micro_batches
from arpo.models.images import ImageProcessor
from arpo.models.policy import ATTENTION_KERNELS, LoraSettings, Policy
from arpo.models.tokenization import ChatTokenizer, tokenize
from tests.models.samples import prepare, screenshot, trajectory, with_random_lora


@pytest.fixture
def policy(each_tiny):
    return Policy(each_tiny)


def as_batch(policy, *episodes):
    return collate(*prepare(policy.chat, *episodes), policy.images)


def mixed_episodes(policy):
    """Three episodes of unequal length that share a screenshot, one of another screen."""
    shared = (trajectory(policy.chat, seeds) for seeds in ((0, 1, 2), (0, 3)))
    return [*shared, trajectory(policy.chat, (4,), size=(1920, 1080))]


def mixed_batch(policy):
    return as_batch(policy, *mixed_episodes(policy))


def full_logprobs(model, policy, episode, temperature):
    """The plain way: the model's own forward pass over one sequence, every image processed, all logits."""
    (tokens,) = tokenize(episode, policy.chat)
    pixels = [policy.images(key, episode.screenshots[key]) for key in tokens.screenshots]
    logits = model(
        input_ids=tokens.input_ids.unsqueeze(0),
        attention_mask=torch.ones(1, len(tokens), dtype=torch.int64),
        mm_token_type_ids=tokens.image_mask.int().unsqueeze(0),
        pixel_values=torch.cat([patches.pixel_values for patches in pixels]),
        image_grid_thw=torch.tensor([patches.grid for patches in pixels]),
    ).logits[0]
    allowed = logits.index_fill(1, torch.tensor(policy.chat.forbidden_ids), -torch.inf)
    logprobs = (allowed / temperature).log_softmax(-1)[:-1]
    chosen = logprobs.gather(1, tokens.input_ids[1:].unsqueeze(1)).squeeze(1)
    return chosen[tokens.action_mask[1:]]


def assert_plain(policy, temperature=1.0):
    """Log-probabilities of a padded batch, and their gradients, are those of transformers row by row."""
    plain = policy.family.model_class.from_pretrained(policy.path)
    episodes = [trajectory(policy.chat, seeds) for seeds in ((0, 1, 2), (3,), (0, 3))]
    output = policy.action_logprobs(as_batch(policy, *episodes), temperature)
    expected = [full_logprobs(plain, policy, episode, temperature) for episode in episodes]
    for row, values in enumerate(expected):
        assert output.mask[row].sum() == len(values)
        torch.testing.assert_close(output.logprobs[row, : len(values)], values, atol=1e-5, rtol=1e-5)
        assert not output.logprobs[row, len(values) :].any()
    sum(values.exp().sum() for values in expected).backward()
    (output.logprobs.exp() * output.mask).sum().backward()
    gradients = {name: parameter.grad for name, parameter in plain.named_parameters()}
    assert len(gradients) > 50
    for name, parameter in policy.model.named_parameters():
        torch.testing.assert_close(parameter.grad, gradients[name], atol=1e-5, rtol=1e-4, msg=name)


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_logprobs_and_gradients_equal_the_plain_forward_pass(policy, temperature):
    assert_plain(policy, temperature)


def test_a_row_does_not_depend_on_the_rest_of_its_micro_batch_nor_on_chunks_of_logits(each_tiny, policy):
    episodes = [trajectory(policy.chat, (0, 1, 2)), trajectory(policy.chat, (0,)), trajectory(policy.chat, (5, 0))]
    together = Policy(each_tiny, logits_chunk=3).action_logprobs(as_batch(policy, *episodes), with_entropy=True)
    for row, episode in enumerate(episodes):
        alone = policy.action_logprobs(as_batch(policy, episode), with_entropy=True)
        width = alone.logprobs.shape[1]
        torch.testing.assert_close(together.logprobs[row, :width], alone.logprobs[0], atol=1e-5, rtol=0)
        assert together.mask[row].sum() == width
        torch.testing.assert_close(together.entropy[row, :width], alone.entropy[0], atol=1e-5, rtol=0)


class Rows(TorchDispatchMode):
    """Notes the most tokens of an MLP of the language model inside of its block."""

    def __init__(self, width: int):
        super().__init__()
        self.width = width
        self.most = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **kwargs or {})
        if func is torch.ops.aten.silu.default and made.shape[-1] == self.width:
            self.most = max(self.most, made.numel() // self.width)
        return made


@pytest.mark.parametrize(
    ("lora", "options"),
    [
        (None, {"gradient_checkpointing": True}),
        (LoraSettings(rank=4, alpha=8), {"gradient_checkpointing": True, "offload_activations": True}),
        pytest.param(None, {"gradient_checkpointing": "selective"}, marks=pytest.mark.long),
    ],
)
def test_mlps_in_parts_give_the_same_gradients_and_are_never_whole(each_tiny, lora, options):
    make = partial(Policy, each_tiny, lora=lora, train_vision=lora is None, **options)
    whole, divided = make(), make(mlp_chunk=7)
    most = []
    for policy in (whole, divided):
        batch = mixed_batch(policy)
        with Rows(policy.model.config.text_config.intermediate_size) as rows:
            backward_of(batch, policy)
        most.append(rows.most)
    assert most == [batch.input_ids.numel(), 7]
    for ours, expected in zip(divided.parameters(), whole.parameters(), strict=True):
        assert (ours.grad is None) == (expected.grad is None)
        if ours.grad is not None:
            torch.testing.assert_close(ours.grad, expected.grad, atol=1e-5, rtol=1e-4)


class Calls(TorchDispatchMode):
    """Counts the calls of each operation inside of its block."""

    def __init__(self):
        super().__init__()
        self.of: Counter[Any] = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.of[func] += 1
        return func(*args, **kwargs or {})


def backward_of(batch, policy):
    """Compute the gradients of a policy in training, whose adapters have moved."""
    torch.manual_seed(0)
    with torch.no_grad():
        for name, parameter in policy.named_parameters():
            if ".lora_" in name:
                parameter.normal_(std=0.1)
    policy.train()
    with Calls() as calls:
        policy.action_logprobs(batch).logprobs.sum().backward()
    return calls


@pytest.mark.parametrize(("lora", "dtype"), [(None, "float32"), (LoraSettings(rank=4, alpha=8), "bfloat16")])
@pytest.mark.parametrize(
    "options",
    [
        {"gradient_checkpointing": True},
        pytest.param({"gradient_checkpointing": True, "offload_activations": True}, marks=pytest.mark.long),
        pytest.param({"gradient_checkpointing": "selective"}, marks=pytest.mark.long),
        {"gradient_checkpointing": "selective", "offload_activations": True},
    ],
    ids=lambda options: "-".join(map(str, options.values())),
)
def test_no_checkpointing_changes_a_bit_of_a_gradient(each_tiny, options, lora, dtype):
    # With LoRA nothing before the blocks has a gradient; a checkpoint that asks its inputs for one would lose all.
    make = partial(Policy, each_tiny, dtype=dtype, lora=lora, train_vision=lora is None)
    plain, checkpointed = make(), make(**options)
    for policy in (plain, checkpointed):
        backward_of(mixed_batch(policy), policy)
    assert checkpointed.model.model.language_model.layers[0].gradient_checkpointing
    for ours, expected in zip(checkpointed.parameters(), plain.parameters(), strict=True):
        assert (ours.grad is None) != ours.requires_grad
        assert ours.grad is None or torch.equal(ours.grad, expected.grad)


@pytest.mark.parametrize(("checkpointing", "language"), [(False, 1), (True, 2), ("selective", 1)])
def test_selective_checkpointing_computes_the_language_model_s_attention_once(tiny_model, checkpointing, language):
    policy = Policy(tiny_model, gradient_checkpointing=checkpointing)
    vision = 2 if checkpointing else 1
    screens = 2  # of two sizes, each a call in each of two blocks
    calls = backward_of(mixed_batch(policy), policy).of
    assert sum(calls[kernel] for kernel in ATTENTION_KERNELS) == 2 * language + 2 * screens * vision


@pytest.mark.parametrize("arguments", [{}, {"train_vision": False}, {"train_vision": False, "lora": LoraSettings(4)}])
def test_what_is_trained_is_float32_and_what_is_frozen_has_the_format_of_the_computation(tiny_model, arguments):
    half = Policy(tiny_model, dtype="bfloat16", **arguments)
    assert any(parameter.requires_grad for parameter in half.parameters())
    for name, parameter in half.named_parameters():
        assert parameter.dtype == (torch.float32 if parameter.requires_grad else torch.bfloat16), name
    batch = mixed_batch(half)
    expected = half.action_logprobs(batch).logprobs
    frozen = half.freeze()
    assert not frozen.training
    assert {(each.dtype, each.requires_grad) for each in frozen.parameters()} == {(torch.bfloat16, False)}
    assert frozen.model.model.language_model.rotary_emb.inv_freq.dtype == torch.float32
    torch.testing.assert_close(frozen.action_logprobs(batch).logprobs, expected.detach(), atol=0.02, rtol=0)


@pytest.mark.parametrize("lora", [None, LoraSettings(4)], ids=["all", "lora"])
def test_in_bfloat16_every_block_computes_in_bfloat16(each_tiny, lora):
    """Also where its weights are float32: the sums between blocks have the engine's format and half the memory."""
    half = Policy(each_tiny, dtype="bfloat16", train_vision=lora is None, lora=lora)
    between: list[torch.dtype] = []
    for block in (*half.model.model.visual.blocks, *half.model.model.language_model.layers):
        block.register_forward_hook(lambda block, inputs, output: between.append(output.dtype))
        for linear in (each for each in block.modules() if isinstance(each, torch.nn.Linear)):
            linear.register_forward_hook(lambda linear, inputs, output: between.append(output.dtype))
    half.action_logprobs(mixed_batch(half)).logprobs.sum().backward()
    assert len(between) > 4
    assert set(between) == {torch.bfloat16}


def test_many_gradients_in_bfloat16_add_up_without_loss(tiny_model):
    # A sum in bfloat16 has eight bits: three times a number has two more than the number.
    half = Policy(tiny_model, dtype="bfloat16", train_vision=False)
    batch = mixed_batch(half)
    half.action_logprobs(batch).logprobs.sum().backward()
    once = {name: parameter.grad.clone() for name, parameter in half.named_parameters() if parameter.requires_grad}
    for _ in range(7):
        half.action_logprobs(batch).logprobs.sum().backward()
    for name, parameter in half.named_parameters():
        if parameter.requires_grad:
            assert parameter.grad.dtype == torch.float32
            torch.testing.assert_close(parameter.grad, 8 * once[name], rtol=1e-4, atol=1e-4, msg=name)


@pytest.mark.parametrize("lora", [None, LoraSettings(4)], ids=["all", "lora"])
def test_in_bfloat16_log_probabilities_are_those_of_a_float32_head(tiny_model, lora):
    half = Policy(tiny_model, dtype="bfloat16", train_vision=False, lora=lora)
    norm = half.model.model.language_model.norm
    norm.weight.data.fill_(20.0)  # logits of the size of a trained model's: their standard deviation is about 4
    states: list[Tensor] = []
    norm.register_forward_hook(lambda norm, inputs, output: states.append(output.detach()))
    batch = mixed_batch(half)
    output = half.action_logprobs(batch)
    predicts = batch.action_mask[:, 1:]
    logits = states[0][:, :-1][predicts].double() @ half.model.lm_head.weight.detach().bfloat16().double().T
    assert 16 < logits.abs().max() < 64
    logits[:, list(half.chat.forbidden_ids)] = -torch.inf
    expected = logits.log_softmax(-1).gather(1, batch.input_ids[:, 1:][predicts][:, None])[:, 0]
    torch.testing.assert_close(output.logprobs[output.mask].double(), expected, atol=1e-4, rtol=0)


def test_lora_starts_as_the_base_and_trains_the_language_blocks_only(each_tiny, policy):
    lora = Policy(each_tiny, train_vision=False, lora=LoraSettings(rank=4, alpha=8))
    batch = mixed_batch(policy)
    torch.testing.assert_close(lora.action_logprobs(batch).logprobs, policy.action_logprobs(batch).logprobs)
    trained = [name for name, parameter in lora.model.named_parameters() if parameter.requires_grad]
    layers = policy.model.model.language_model.layers.modules()
    assert len(trained) == 2 * sum(isinstance(module, torch.nn.Linear) for module in layers)  # A and B
    assert all("language_model.layers." in name and ".lora_" in name for name in trained)


def test_without_its_adapters_a_policy_is_its_base_for_a_while(each_tiny, policy):
    lora = with_random_lora(each_tiny)
    batch = mixed_batch(policy)
    trained, base = lora.action_logprobs(batch).logprobs, policy.action_logprobs(batch).logprobs
    with lora.without_adapters():
        torch.testing.assert_close(lora.action_logprobs(batch).logprobs, base)
    assert not torch.allclose(trained, base, atol=1e-3)
    assert torch.equal(lora.action_logprobs(batch).logprobs, trained)
    assert all(parameter.requires_grad for name, parameter in lora.named_parameters() if ".lora_" in name)
    assert (lora.has_adapters, policy.has_adapters) == (True, False)


def test_adapters_start_alike_whatever_random_numbers_were_drawn_before(tiny_model):
    name, weights = "model.model.language_model.layers.0.mlp.up_proj.lora_A.default.weight", []
    for seed, numbers in ((3, 0), (3, 7), (4, 0)):
        torch.manual_seed(seed)
        torch.rand(numbers)
        policy = Policy(tiny_model, lora=LoraSettings(rank=4), train_vision=False)
        weights.append(policy.get_parameter(name))
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


@pytest.mark.parametrize("lora", [False, True])
def test_a_saved_policy_loads_as_a_checkpoint_with_the_same_logprobs(each_tiny, tmp_path, lora):
    policy = with_random_lora(each_tiny) if lora else Policy(each_tiny)
    policy.save(tmp_path / "saved")
    assert len({(tmp_path / "saved" / name).stat().st_mode for name in ("config.json", "model.safetensors")}) == 1
    again = Policy(tmp_path / "saved")
    batch = mixed_batch(policy)
    expected = policy.action_logprobs(batch).logprobs
    torch.testing.assert_close(again.action_logprobs(batch).logprobs, expected, atol=1e-5, rtol=1e-5)
    assert again.chat.forbidden_ids == policy.chat.forbidden_ids
    assert AutoProcessor.from_pretrained(tmp_path / "saved").chat_template
    base = Policy(each_tiny).action_logprobs(batch).logprobs
    assert torch.allclose(base, expected, atol=1e-3) != lora


def test_the_tensors_for_the_engine_are_exactly_those_of_a_checkpoint_file(each_tiny, tmp_path):
    policy = Policy(each_tiny)
    policy.save(tmp_path)
    tensors = list(policy.checkpoint_tensors())
    assert len(tensors) == len(dict(tensors))
    assert not any(tensor.requires_grad for _, tensor in tensors)
    for saved in (load_file(tmp_path / "model.safetensors"), load_file(each_tiny / "model.safetensors")):
        assert dict(tensors).keys() == saved.keys()
    torch.testing.assert_close(dict(tensors), load_file(tmp_path / "model.safetensors"), rtol=0, atol=0)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_with_lora_the_tensors_for_the_engine_are_the_adapter_s_in_the_format_of_the_computation(each_tiny, dtype):
    policy = with_random_lora(each_tiny, dtype=dtype)
    tensors = dict(policy.checkpoint_tensors())
    assert Policy(each_tiny).update_error() is None
    assert len(tensors) == sum(parameter.requires_grad for parameter in policy.parameters())
    assert all(".lora_" in name for name in tensors)
    assert {tensor.dtype for tensor in tensors.values()} == {getattr(torch, dtype)}
    assert not any(tensor.requires_grad for tensor in tensors.values())
    error = policy.update_error()  # of what the update loses on its way
    assert error == 0 if dtype == "float32" else 0 < error < 0.01


def test_a_bfloat16_policy_is_saved_in_bfloat16_and_an_update_of_lora_in_float32(tiny_model, tmp_path):
    Policy(tiny_model, dtype="bfloat16").save(tmp_path / "all")
    assert {tensor.dtype for tensor in load_file(tmp_path / "all" / "model.safetensors").values()} == {torch.bfloat16}
    with_random_lora(tiny_model, dtype="bfloat16").save(tmp_path / "lora")
    saved = load_file(tmp_path / "lora" / "model.safetensors")
    assert saved["model.layers.0.mlp.up_proj.weight"].dtype == torch.float32
    assert saved["model.embed_tokens.weight"].dtype == torch.bfloat16


def test_an_untied_output_layer_is_among_the_tensors(tiny_model):
    policy = Policy(tiny_model)
    policy.model = Qwen2_5_VLForConditionalGeneration.from_pretrained(tiny_model, tie_word_embeddings=False)
    assert "lm_head.weight" in dict(policy.checkpoint_tensors())


def test_a_chat_tokenizer_agrees_with_the_images_on_every_size(each_tiny):
    images, chat = ImageProcessor(each_tiny), ChatTokenizer(each_tiny)
    patch = chat.family.resize_factor // 2
    for size in [(112, 140), (50, 40), (640, 480), (1920, 1080), (1000, 100)]:
        _, rows, columns = images(*screenshot(0, *size)).grid
        assert chat.image_tokens(*size) == rows * columns // 4
        assert chat.model_size(*size) == (patch * columns, patch * rows)


def test_what_a_frozen_tower_saw_before_changes_no_logprob_and_no_gradient(each_tiny):
    policy = Policy(each_tiny, train_vision=False)
    episodes = mixed_episodes(policy)
    expected = policy.action_logprobs(as_batch(policy, *episodes)).logprobs
    (expected_gradient,) = torch.autograd.grad(expected.sum(), policy.model.model.language_model.norm.weight)
    tokenized, screenshots = prepare(policy.chat, *episodes)
    tokens = policy.visual_tokens([policy.images.packed(key, png) for key, png in screenshots.items()])
    features = dict(zip(screenshots, tokens, strict=True))
    logprobs = policy.action_logprobs(collate(tokenized, screenshots, policy.images, features)).logprobs
    torch.testing.assert_close(logprobs, expected, atol=1e-6, rtol=0)
    (gradient,) = torch.autograd.grad(logprobs.sum(), policy.model.model.language_model.norm.weight)
    torch.testing.assert_close(gradient, expected_gradient, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("train_vision", [True, False])
def test_no_forward_and_no_backward_asks_the_device_for_a_number(each_tiny, train_vision):
    """On the meta device there are no numbers: asking for one fails."""
    policy = Policy(each_tiny, train_vision=train_vision)
    batch = mixed_batch(policy)
    policy.to("meta")
    output = policy.action_logprobs(batch, with_entropy=True)
    output.logprobs.sum().backward()
    assert output.logprobs.shape == (3, int(batch.action_mask.sum(1).max()))
    for name, parameter in policy.model.named_parameters():
        assert parameter.requires_grad == (train_vision or not name.startswith("model.visual.")), name
        assert (parameter.grad is not None) == parameter.requires_grad, name


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda _: LoraSettings(rank=0), "rank must be at least 1, got 0"),
        (lambda _: LoraSettings(alpha=0.0), "alpha must be above 0, got 0.0"),
        (lambda _: LoraSettings(alpha=float("inf")), "alpha must be a finite number, got inf"),
        (lambda path: Policy(path, logits_chunk=0), "logits_chunk must be at least 1, got 0"),
        (lambda path: Policy(path, dtype="float8"), "dtype must be 'float32' or 'bfloat16', got 'float8'"),
        (lambda path: Policy(path, lora=LoraSettings(4)), "set train_vision=false"),
        (lambda path: (it := Policy(path)).action_logprobs(mixed_batch(it), 0.0), "temperature must be positive"),
        (lambda path: Policy(path, offload_activations=True), "needs gradient_checkpointing=true"),
        (
            lambda path: Policy(path, gradient_checkpointing="selective", attention="eager"),
            "selective needs attention=sdpa, got eager: set it to true",
        ),
        (lambda path: ImageProcessor(path, cache_mb=-1), "cache_mb must be at least 0, got -1"),
        (lambda _: micro_batches([1], max_tokens=0), "max_tokens must be at least 1, got 0"),
    ],
)
def test_arguments_out_of_bounds_or_that_contradict_each_other_are_refused(tiny_model, build, message):
    with pytest.raises(ValueError, match=message):
        build(tiny_model)
