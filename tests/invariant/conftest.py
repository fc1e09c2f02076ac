"""The module tests' policy and groups serve here too."""

from tests.modules.conftest import loaded_policy, make_group, make_module, make_policy

__all__ = ["loaded_policy", "make_group", "make_module", "make_policy"]
