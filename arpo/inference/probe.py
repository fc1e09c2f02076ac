"""The freshness probe: after a weight update, a fixed request shows whether the engine serves the new weights.

Ask the same one after every update, with a screenshot and a fixed seed: whatever an engine wrongly keeps from before
(prefix, encoder or multimodal cache) then answers for the old weights, and its log-probabilities show it.
"""

from collections.abc import Sequence

from arpo.errors import WeightSyncError


def logprob_gap(engine_logprobs: Sequence[float], trainer_logprobs: Sequence[float]) -> float:
    """Return the largest difference between two lists of log-probabilities of the same tokens.

    Raises:
        ValueError: If there are none, or not equally many.
    """
    if not engine_logprobs or len(engine_logprobs) != len(trainer_logprobs):
        raise ValueError(
            "the probe needs two equally long lists of log-probabilities, "
            f"got {len(engine_logprobs)} from the engine and {len(trainer_logprobs)} from the trainer"
        )
    gaps = [abs(ours - theirs) for ours, theirs in zip(engine_logprobs, trainer_logprobs, strict=True)]
    # max() would let a NaN pass: it is not larger than anything.
    return next((gap for gap in gaps if gap != gap), max(gaps))  # noqa: PLR0124


def check_probe(gap: float, tolerance: float) -> None:
    """Stop the run if the engine does not serve the trainer's weights.

    Raises:
        WeightSyncError: If the gap is above the tolerance or not a number.
    """
    if gap <= tolerance:
        return
    raise WeightSyncError(
        f"after the weight update the engine's log-probabilities differ from the trainer's by {gap:.2g}, allowed is "
        f"{tolerance:.2g}. It serves old weights, kept a prefix, multimodal or encoder cache, or computes in another "
        "precision: use the same dtype on both sides; between bfloat16 implementations about 0.06 is normal"
    )
