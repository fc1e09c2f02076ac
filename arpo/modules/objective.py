"""The former place of the options of GRPO, for a configuration that still names it: they are in `arpo.methods`."""

from arpo.methods.grpo import GRPO

Objective = GRPO
