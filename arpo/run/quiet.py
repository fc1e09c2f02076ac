"""The silence of libraries, so that what a run says can be read."""

import logging
import warnings


def quiet() -> None:
    """Silence what libraries say about themselves; imports none of them."""
    logging.getLogger("lightning.pytorch.utilities.rank_zero").setLevel(logging.WARNING)
    logging.getLogger("lightning.pytorch.trainer.connectors.checkpoint_connector").setLevel(logging.WARNING)
    logging.getLogger("vllm").setLevel(logging.ERROR)
    for message in (
        ".*sync_dist=True.*",  # vLLM initialises torch.distributed with one process; there is nothing to sync
        ".*isinstance\\(treespec, LeafSpec\\).*",
        ".*torch.distributed.reduce_op.*",
        ".*IterableDataset. has .__len__. defined.*",
        ".*does not have many workers.*",
        ".*You have overridden `transfer_batch_to_device`.*",
    ):
        warnings.filterwarnings("ignore", message=message)
