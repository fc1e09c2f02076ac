"""The flow of groups: who gets an environment next, how far rollouts run ahead, and what an update learns from."""
