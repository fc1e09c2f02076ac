"""Qwen2.5-VL policies: loading, tokenization, and log-probabilities of trajectories."""
