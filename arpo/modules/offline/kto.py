"""Learning from single trajectories that succeed or fail (arXiv 2402.01306)."""

from arpo.methods.kto import KTO
from arpo.modules.offline.preference import PreferenceModule


class KTOModule(PreferenceModule):
    """A policy that learns by `KTO`, whose options are arguments of the module."""

    method = KTO
    learns_from = "every_episode"
