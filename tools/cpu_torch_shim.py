"""Let the CUDA build of torchvision be imported beside a CPU build of torch.

There is no CPU wheel of torchvision where torch is installed as `+cpu`. Its C++ library then fails to load, which
torchvision tolerates, but its Python side still registers shape functions for two operators that nobody declared.
Declaring them just before torchvision is imported is all that is missing: Qwen's image processors use only the pure
Python transforms. torchaudio and torchcodec cannot be imported at all in that state, and are hidden.

`make setup` copies this file into the virtual environment together with a `.pth` line that imports it, so that it also
acts in Ray workers; no file of ARPO imports it. It does nothing where torch is not a CPU build. To remove it, delete
`cpu_torch_shim.*` from the environment's `site-packages`.
"""

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType


class DeclareTorchvisionOperators(MetaPathFinder):
    """Declares `torchvision::nms` and `::qnms` when torchvision is first looked up, then steps aside."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Declare when it is torchvision's turn; finding it is left to the other finders."""
        if name == "torchvision":
            sys.meta_path.remove(self)
            import torch

            library = torch.library.Library("torchvision", "FRAGMENT")
            for operator in ("nms", "qnms"):
                library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
            torch._torchvision_operator_declarations = library  # a collected library takes its operators with it
        return None


def is_cpu_build(package: str) -> bool:
    """Whether the installed `package` carries the local version `+cpu`; False where it is not installed."""
    try:
        return version(package).endswith("+cpu")
    except PackageNotFoundError:
        return False


if is_cpu_build("torch"):
    if not is_cpu_build("torchvision"):
        sys.meta_path.insert(0, DeclareTorchvisionOperators())
    for hidden in ("torchaudio", "torchcodec"):
        if not is_cpu_build(hidden):
            sys.modules.setdefault(hidden, None)  # type: ignore[arg-type]
