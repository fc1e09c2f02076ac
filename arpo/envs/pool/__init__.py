"""Environments behind leases."""
