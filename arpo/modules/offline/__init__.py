"""Learning from data that exists already: imitation's base, preference optimisation."""
