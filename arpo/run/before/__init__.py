"""Before a run: what a person typed, what the environment says, and what an earlier start of the run has left."""
