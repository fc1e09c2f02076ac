"""What runs inside vLLM's workers when the model is split over several GPUs."""

from typing import Any

from safetensors.torch import load_file


class FileLoader:
    """Mixed into vLLM's worker class: loads weights from a file, because tensors do not cross its process boundary."""

    reload_weights: Any

    def load_file(self, path: str) -> None:
        """Take over the tensors of a safetensors file, each worker its shard."""
        self.reload_weights(weights_iterator=load_file(path).items())
