"""The work around the update: replay, weight sync, evaluation, logs."""
