"""From a configuration to a run."""
