"""What happens in vLLM's worker process, on a model of our own."""

import pytest
import torch
from torch import Tensor, nn

pytestmark = pytest.mark.engine


class Part(nn.Module):
    """Holds a parameter, a buffer, and tensors that are neither, as vLLM's Qwen3-VL holds DeepStack's stages."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))
        self.register_buffer("table", torch.ones(2))
        self.stages = [torch.full((2,), 3.0), torch.full((2,), 4.0)]
        self.by_name = {"scale": torch.tensor(5.0), "deeper": [(torch.tensor(6.0), {"deepest": torch.tensor(7.0)})]}
        self.bare = torch.tensor(8.0)
        self.weight_view = [self.weight.detach()[:1]]
        self.kv_cache = torch.full((2,), 9.0)
        self.number, self.words = 1.0, ["a", None]

    def plain(self) -> list[Tensor]:
        (first, inner) = self.by_name["deeper"][0]
        return [*self.stages, self.by_name["scale"], first, inner["deepest"], self.bare]


def test_what_no_update_brings_is_after_a_sleep_what_it_was() -> None:
    from arpo.inference.vllm_worker import WeightAccess

    class Worker(WeightAccess):
        model = nn.Sequential(Part(), nn.Sequential(Part()))

        def get_model(self) -> nn.Module:
            return self.model

    worker = Worker()
    parts = [part for part in worker.model.modules() if isinstance(part, Part)]
    with torch.inference_mode():  # as vLLM makes larger stages in the middle of a step
        parts[1].stages = [torch.full((3,), 3.0), torch.full((3,), 4.0)]
    before = [tensor.clone() for part in parts for tensor in part.plain()]
    worker.keep_plain_tensors()
    with torch.inference_mode():
        for part in parts:
            for tensor in (*part.plain(), part.weight, part.table, part.kv_cache):
                tensor.fill_(torch.nan)
    worker.restore_plain_tensors()
    after = [tensor for part in parts for tensor in part.plain()]
    assert len(parts) == 2
    assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))
    for part in parts:  # an update brings the first, vLLM itself the second, and there is no memory yet for the third
        assert all(tensor.isnan().all() for tensor in (part.weight, part.weight_view[0], part.table, part.kv_cache))
    worker.restore_plain_tensors()  # nothing is written twice
