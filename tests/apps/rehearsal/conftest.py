"""One folder for the rehearsals of a file, because a tiny policy is made once for each prompt."""

import pytest


@pytest.fixture(scope="module")
def output(tmp_path_factory):
    return tmp_path_factory.mktemp("outputs")
