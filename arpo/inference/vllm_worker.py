"""An extension of vLLM's workers, for a model that is split over several GPUs."""

from typing import Any

from safetensors.torch import load_file


class FileLoader:
    """A mixin of vLLM's worker class: tensors do not cross its process boundary, and come in a file."""

    reload_weights: Any

    def load_file(self, path: str) -> None:
        """Load the tensors of a safetensors file; each worker keeps its shard."""
        self.reload_weights(weights_iterator=load_file(path).items())
