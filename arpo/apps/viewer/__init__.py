"""A run to look at in a browser: its groups, episodes, steps and tokens, and what the updates did to them."""
