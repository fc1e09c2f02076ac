"""The surroundings of the update: replay, weight sync, evaluation, logs."""
