"""What happens around the update: replay, weight sync, evaluation, logs."""
