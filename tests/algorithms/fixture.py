"""The fixture on which verl 0.9.1, TRL 1.16.0 and DART's fork were run to give the golden values."""

import torch

OLD = torch.tensor([[-1.0, -0.5, -2.0], [-0.2, -1.5, -0.7]])
NEW = torch.tensor([[-0.6, -0.9, -2.0], [-0.3, -0.9, -1.9]])
SAMPLER = torch.tensor([[-1.2, -0.5, -1.5], [-0.2, -2.5, -0.7]])
MASK = torch.tensor([[True, True, True], [True, True, False]])
ADVANTAGES = torch.tensor([1.0, -1.0])
ENTROPIES = torch.tensor([[0.1, 0.9, 0.5], [0.2, 0.8, 0.0]])


def assert_golden(actual: torch.Tensor, expected: list[list[float]] | list[float] | float) -> None:
    """Compare to 1e-6 absolute, the precision to which the golden values are written."""
    torch.testing.assert_close(actual, torch.tensor(expected, dtype=actual.dtype), atol=1e-6, rtol=0)
