"""What is used of transformers, Ray, Lightning and torch beyond their public interfaces is there."""

import pytest

from tests.surfaces import check_surface, surfaces


@pytest.mark.parametrize("surface", surfaces("transformers", "Ray", "Lightning", "torch"))
def test_each_row_of_the_page_is_there(surface):
    check_surface(surface)


def test_a_name_or_a_parameter_that_is_gone_is_noticed():
    for surface in ("torch.utils._pytree:no_leaves", "transformers:PreTrainedModel._from_config(colour)"):
        with pytest.raises(AssertionError):
            check_surface(surface)
