"""An environment for ARPO, and its tasks."""
