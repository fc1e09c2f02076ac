"""ARPO: reinforcement learning for GUI agents with experience replay (arXiv 2505.16282)."""
