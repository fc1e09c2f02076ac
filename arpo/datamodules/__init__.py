"""LightningDataModules: tasks to rollouts to batches, demonstrations to batches."""
