"""Collecting episodes with a fixed policy."""
