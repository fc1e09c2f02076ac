import torch
from torch._subclasses.fake_tensor import FakeTensor

from arpo.apps.plan.fake import fake_floats


def test_a_floating_point_tensor_has_a_shape_and_takes_no_memory_and_whole_numbers_are_computed():
    with fake_floats():
        huge = torch.empty(10**6, 10**6) @ torch.empty(10**6, 3)
        lengths = torch.tensor([2, 3]).cumsum(0)
        assert lengths.tolist() == [2, 5]
        assert torch.arange(int(lengths[-1])).sum().item() == 10
        assert torch.empty(3).sum().item() == 1.0  # a number that is read from a fake tensor
        assert bool((torch.empty(3) > 0).any())
    assert isinstance(huge, FakeTensor)
    assert huge.shape == (10**6, 3)


def test_a_real_mask_says_how_much_of_a_fake_tensor_is_taken_forward_and_backward():
    mask = torch.tensor([[True, False, True], [False, False, True]])
    with fake_floats():
        values = torch.empty(2, 3, 4, requires_grad=True)
        chosen = values[mask]
        assert chosen.shape == (3, 4)
        chosen.sum().backward()
        assert values.grad is not None
        assert values.grad.shape == (2, 3, 4)
