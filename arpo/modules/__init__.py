"""LightningModules: the parameters and their update."""
