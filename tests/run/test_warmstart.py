import sys
from pathlib import Path

import pytest

from arpo.errors import ConfigError
from arpo.run.warmstart import check_warmstart, ensure_model, policy_of


def test_a_checkpoint_that_no_warm_start_would_write_is_refused_before_it_runs(tmp_path):
    (tmp_path / "config.json").touch()
    check_warmstart(str(tmp_path), "warmstart_fake", "out")
    check_warmstart("/nope", None, "out")
    check_warmstart(policy_of("warmstart_fake", "out"), "warmstart_fake", "out")
    with pytest.raises(ConfigError, match=r"no checkpoint at model\.path=/nope, and experiment=warmstart_fake would"):
        check_warmstart("/nope", "warmstart_fake", "out")


def test_an_experiment_that_does_not_exist_is_no_warm_start(tmp_path):
    path = policy_of("warmstart_fkae", "out")
    with pytest.raises(ConfigError, match="warmstart=warmstart_fkae; choose one of warmstart_desktop, war"):
        check_warmstart(path, "warmstart_fkae", "out")
    (tmp_path / "config.json").touch()
    check_warmstart(str(tmp_path), "warmstart_fkae", "out")  # it will not run


@pytest.fixture
def entry_point(tmp_path, monkeypatch):
    """Stands in for train.py: a script that does what a test says, and writes down how it was called."""

    def make(code: str) -> Path:
        script = tmp_path / "train.py"
        script.write_text(
            f"import sys\nfrom pathlib import Path\nroot = Path({str(tmp_path)!r})\n"
            f"(root / 'called').write_text(' '.join(sys.argv[1:]))\n{code}"
        )
        monkeypatch.setattr(sys, "argv", [str(script)])
        return tmp_path

    return make


def test_a_missing_policy_is_made_by_the_warm_start(entry_point):
    root = entry_point("(root / 'policy').mkdir()\n(root / 'policy' / 'config.json').write_text('{}')")
    ensure_model(root / "policy", "warmstart_fake", "some/outputs")
    assert (root / "called").read_text() == "experiment=warmstart_fake paths.output=some/outputs resume=auto"


def test_a_policy_that_is_there_is_not_made_again(entry_point):
    root = entry_point("sys.exit(1)")
    (root / "config.json").write_text("{}")
    ensure_model(root, "warmstart_fake", "outputs")
    assert not (root / "called").exists()


def test_a_warm_start_that_fails_ends_the_run_with_its_name(entry_point):
    root = entry_point("sys.exit(3)")
    with pytest.raises(ConfigError, match=r"warm start failed.*experiment=warmstart_fake"):
        ensure_model(root / "policy", "warmstart_fake", "outputs")


def test_a_policy_that_no_warm_start_writes_is_named(entry_point):
    root = entry_point("")
    with pytest.raises(ConfigError, match=r"still nothing at model\.path=.*elsewhere.*writes elsewhere"):
        ensure_model(root / "elsewhere", "warmstart_fake", "outputs")
