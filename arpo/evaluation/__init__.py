"""How good a policy is, and which tasks it can learn from."""
