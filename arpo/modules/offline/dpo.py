"""Direct preference optimisation on pairs of a success and a failure (arXiv 2305.18290)."""

from arpo.methods.dpo import DPO
from arpo.modules.offline.preference import PreferenceModule


class DPOModule(PreferenceModule):
    """A policy that learns by `DPO`, whose options are arguments of the module."""

    method = DPO
    learns_from = "pairs"
