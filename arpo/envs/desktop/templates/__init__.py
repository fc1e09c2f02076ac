"""Templates of desktop tasks: one file an application, and the lists of tasks from them."""
