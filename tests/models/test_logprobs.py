import math

import pytest
import torch

from arpo.models.policy import Float32Head, Float32Product, chosen_logprobs, entropy_of_logits, pack_left


def identity(rows):
    return rows.clone()


def no_ids():
    return torch.tensor([], dtype=torch.int64)


def test_logprobs_by_hand():
    # softmax([ln 1, ln 2, ln 5]) = [1/8, 2/8, 5/8]; at temperature 1/2 the odds are squared: [1, 4, 25] / 30
    logits = torch.tensor([[1.0, 2.0, 5.0]]).log()
    chosen, options = torch.tensor([1]), {"chunk": 8, "with_entropy": False}
    for temperature, probability in [(1.0, 2 / 8), (0.5, 4 / 30)]:
        logprobs, entropy = chosen_logprobs(logits, chosen, identity, no_ids(), temperature=temperature, **options)
        assert entropy is None
        assert logprobs.item() == pytest.approx(math.log(probability))


def test_a_float32_head_keeps_what_bfloat16_rounds_away():
    # 16 + 1/16 lies between 16 and 16.125, the two bfloat16 numbers next to it.
    head = torch.nn.Linear(2, 1, bias=False, dtype=torch.bfloat16)
    head.weight.data = torch.tensor([[16.0, 0.0625]], dtype=torch.bfloat16)
    hidden = torch.ones(1, 2, dtype=torch.bfloat16)
    assert head(hidden).item() == 16.0
    with torch.autocast("cpu", torch.bfloat16):
        logits = Float32Head(head, torch.bfloat16)(hidden)
    assert (logits.dtype, logits.item()) == (torch.float32, 16.0625)


def test_a_float32_head_rounds_its_weight_as_the_engine_does_and_trains_it_in_float32():
    # Between 1 and 2 bfloat16 has steps of 1/128: 1.001 becomes 1.
    head = torch.nn.Linear(1, 1, bias=False)
    head.weight.data.fill_(1.001)
    logits = Float32Head(head, torch.bfloat16)(torch.full((1, 1), 3.0))
    assert logits.item() == 3.0
    logits.sum().backward()
    assert (head.weight.grad.dtype, head.weight.grad.item()) == (torch.float32, 3.0)


@pytest.fixture
def product_on_the_cpu():
    """CUDA's product of two narrow matrices in float32, which torch does not have on the CPU."""
    with torch.library._scoped_library("aten", "IMPL") as library:
        library.impl("mm.dtype", lambda one, other, out_dtype: one.to(out_dtype) @ other.to(out_dtype), "CPU")
        yield


@pytest.mark.usefixtures("product_on_the_cpu")
@pytest.mark.parametrize("trained", [True, False], ids=["all weights", "lora"])
def test_the_fast_product_and_its_gradients_are_those_of_float32_matrices(trained):
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(7, 5, generator=generator).bfloat16().requires_grad_()
    weight = torch.randn(11, 5, generator=generator).bfloat16().requires_grad_(trained)
    inputs = (hidden, weight) if trained else (hidden,)
    expected = torch.nn.functional.linear(hidden.float(), weight.float())
    actual = Float32Product.apply(hidden, weight)
    assert actual.dtype == torch.float32
    torch.testing.assert_close(actual, expected)
    gradients = torch.autograd.grad(actual.square().sum(), inputs)
    torch.testing.assert_close(gradients, torch.autograd.grad(expected.square().sum(), inputs))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_a_float32_head_gives_the_logits_of_the_cpu():
    head = torch.nn.Linear(512, 1000, bias=False)
    hidden = torch.randn(3, 8, 512).bfloat16()
    expected = Float32Head(head, torch.bfloat16)(hidden)
    torch.testing.assert_close(Float32Head(head.cuda(), torch.bfloat16)(hidden.cuda()).cpu(), expected)


def test_a_forbidden_id_takes_no_probability():
    logits = torch.tensor([[1.0, 2.0, 5.0]]).log()
    options = {"temperature": 1.0, "chunk": 8, "with_entropy": True}
    logprobs, entropy = chosen_logprobs(logits, torch.tensor([0]), identity, torch.tensor([2]), **options)
    # [1, 2] / 3 remain; entropy = 1/3 ln 3 + 2/3 ln 1.5
    assert logprobs.item() == pytest.approx(math.log(1 / 3))
    assert entropy.item() == pytest.approx(math.log(3) / 3 + 2 * math.log(1.5) / 3)


@pytest.mark.parametrize("chunk", [1, 3, 7, 100])
def test_values_and_gradients_do_not_depend_on_the_chunk(chunk):
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(11, 5, generator=generator).requires_grad_()
    hidden = torch.randn(7, 5, generator=generator).requires_grad_()
    chosen = torch.tensor([0, 3, 4, 10, 5, 0, 7])
    forbidden = torch.tensor([1, 2])

    logits = (hidden @ weight.T).index_fill(1, forbidden, -torch.inf) / 0.7
    expected = logits.log_softmax(-1).gather(1, chosen.unsqueeze(1)).squeeze(1)
    expected_gradients = torch.autograd.grad(expected.square().sum(), (hidden, weight))

    options = {"temperature": 0.7, "chunk": chunk, "with_entropy": True}
    logprobs, entropy = chosen_logprobs(hidden, chosen, lambda rows: rows @ weight.T, forbidden, **options)
    assert not entropy.requires_grad
    torch.testing.assert_close(logprobs, expected)
    torch.testing.assert_close(torch.autograd.grad(logprobs.square().sum(), (hidden, weight)), expected_gradients)
    torch.testing.assert_close(entropy, torch.distributions.Categorical(logits=logits.detach()).entropy())


def test_logits_of_one_chunk_only_exist_at_a_time():
    rows_at_once: list[int] = []

    def head(rows):
        rows_at_once.append(len(rows))
        return rows * 1.0

    hidden = torch.zeros(10, 3).requires_grad_()
    options = {"temperature": 1.0, "chunk": 4, "with_entropy": False}
    logprobs, _ = chosen_logprobs(hidden, torch.zeros(10, dtype=torch.int64), head, no_ids(), **options)
    assert rows_at_once == [4, 4, 2]
    # The graph holds no logits: the backward pass asks the head again.
    logprobs.sum().backward()
    assert sorted(rows_at_once) == [2, 2, 4, 4, 4, 4]


def test_an_uncertain_row_has_the_entropy_of_its_words():
    logits = torch.tensor([[0.0, 0.0, 0.0, -torch.inf], [9.0, -torch.inf, -torch.inf, -torch.inf]])
    torch.testing.assert_close(entropy_of_logits(logits), torch.tensor([math.log(3), 0.0]))


def test_packing_moves_values_to_the_left_and_fills_with_zeros_and_no_actions_give_empty_rows():
    mask = torch.tensor([[True, True], [True, False], [False, False]])
    packed = pack_left(torch.tensor([1.0, 2.0, 3.0]), mask, torch.tensor([0, 1, 2]))
    assert packed.tolist() == [[1.0, 2.0], [3.0, 0.0], [0.0, 0.0]]
    options = {"temperature": 1.0, "chunk": 4, "with_entropy": False}
    logprobs, _ = chosen_logprobs(torch.zeros(0, 3), no_ids(), identity, no_ids(), **options)
    assert pack_left(logprobs, torch.zeros(2, 0, dtype=torch.bool), no_ids()).shape == (2, 0)


def test_an_entropy_has_the_gradient_of_its_formula_where_it_is_asked_for():
    # dH/dl = -p (log p + H). Of [1/2, 1/4, 1/4, 0, forbidden]: H = 1.5 ln 2; p (log p + H) = (.25, -.125, -.125) ln 2
    logits = torch.tensor([[0.5, 0.25, 0.25, 1e-45, 1.0]]).log().requires_grad_()
    chosen, forbidden = torch.tensor([0]), torch.tensor([4])
    for gradient in (True, False):
        options = {"temperature": 1.0, "chunk": 1, "with_entropy": True, "entropy_gradient": gradient}
        _, entropy = chosen_logprobs(logits, chosen, identity, forbidden, **options)
        assert entropy.item() == pytest.approx(1.5 * math.log(2))
        assert entropy.requires_grad == gradient
        if gradient:
            entropy.sum().backward()
            expected = [-0.25 * math.log(2), 0.125 * math.log(2), 0.125 * math.log(2), 0.0, 0.0]
            assert logits.grad[0].tolist() == pytest.approx(expected, abs=1e-6)
