"""The judgement of a policy, and the choice of tasks that it can learn from."""
