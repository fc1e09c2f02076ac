"""Choosing data while it is made: how much of each task is rolled out, and what was collected beforehand."""
