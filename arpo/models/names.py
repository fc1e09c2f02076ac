"""Names of weights: `transformers` 5 renames a Qwen2.5-VL checkpoint as it loads, and keeps the new names."""

RENAMED = (("model.visual.", "visual."), ("model.language_model.", "model."))
"""Modules carry the names on the left, published checkpoints, and so vLLM, those on the right."""


def checkpoint_name(name: str) -> str:
    """Return a parameter's name as published Qwen2.5-VL checkpoints write it."""
    for ours, published in RENAMED:
        if name.startswith(ours):
            return published + name.removeprefix(ours)
    return name
