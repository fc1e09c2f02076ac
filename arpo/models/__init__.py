"""Policies: loading, tokenization, and log-probabilities of trajectories; the families of models."""
