"""Checkpoint files that are written while their tensors arrive."""

import json
import weakref

import torch
from safetensors.torch import load_file
from transformers import Qwen2_5_VLForConditionalGeneration

from arpo.models.policy import Policy
from arpo.models.saving import write_weights


def test_what_fits_is_one_file_without_an_index(tmp_path):
    write_weights([("a", torch.ones(3)), ("b", torch.zeros(2, 2))], tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["model.safetensors"]
    assert load_file(tmp_path / "model.safetensors")["b"].shape == (2, 2)


def test_what_does_not_fit_is_several_files_and_an_index_that_transformers_reads(tiny_model, tmp_path):
    policy = Policy(tiny_model)
    policy.model.config.save_pretrained(tmp_path)
    # 725,440 parameters of 4 bytes, and an embedding of 640 x 128 x 4 = 327,680 bytes as the largest tensor
    write_weights(policy.checkpoint_tensors(), tmp_path, file_bytes=1_000_000)
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    files = sorted(path.name for path in tmp_path.glob("*.safetensors"))
    assert files == [f"model-{number:05d}-of-{len(files):05d}.safetensors" for number in range(1, len(files) + 1)]
    assert len(files) >= 3
    assert set(index["weight_map"].values()) == set(files)
    assert index["metadata"]["total_size"] == sum(tensor.nbytes for _, tensor in policy.checkpoint_tensors())
    assert all((tmp_path / name).stat().st_size < 1_100_000 for name in files)
    loaded = Qwen2_5_VLForConditionalGeneration.from_pretrained(tmp_path)
    pairs = zip(loaded.parameters(), policy.model.parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)


def test_a_tensor_larger_than_a_file_has_one_of_its_own(tmp_path):
    write_weights([("a", torch.ones(2)), ("b", torch.ones(100)), ("c", torch.ones(2))], tmp_path, file_bytes=16)
    assert [len(load_file(path)) for path in sorted(tmp_path.glob("*.safetensors"))] == [1, 1, 1]


def test_tensors_are_let_go_file_by_file(tmp_path):
    alive = weakref.WeakSet()
    most = []

    def tensors():
        for number in range(40):
            tensor = torch.ones(1000)  # 4,000 bytes
            alive.add(tensor)
            most.append(len(alive))
            yield str(number), tensor
            del tensor

    write_weights(tensors(), tmp_path, file_bytes=20_000)  # five tensors a file
    assert max(most) <= 6  # those of a file, and the one that did not fit
