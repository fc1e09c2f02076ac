"""Where wandb finds a login."""

import pytest

from arpo.run.preflight import missing_login


@pytest.fixture
def missing(tmp_path):
    (tmp_path / "work").mkdir()

    def ask(**environ):
        return missing_login(environ, tmp_path, tmp_path / "work")

    return ask


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_without_anything_nobody_is_logged_in(missing):
    assert missing() == "api.wandb.ai"
    assert missing(WANDB_BASE_URL="https://wandb.example:8080/") == "wandb.example:8080"
    assert missing(WANDB_MODE="online", WANDB_API_KEY="") == "api.wandb.ai"


def test_a_variable_that_says_so_is_enough(missing):
    assert missing(WANDB_API_KEY="secret") is missing(WANDB_IDENTITY_TOKEN_FILE="token") is None
    assert missing(WANDB_MODE="offline") is missing(WANDB_MODE="disabled") is missing(WANDB_DISABLED="true") is None


def test_a_login_counts_at_its_own_host(missing, tmp_path):
    write(tmp_path / ".netrc", "machine wandb.example login user password secret\n")
    assert missing() == "api.wandb.ai"
    assert missing(WANDB_BASE_URL="https://wandb.example") is None
    write(tmp_path / ".config" / "wandb" / "settings", "[default]\nbase_url = https://wandb.example\n")
    assert missing() is None


def test_the_file_of_logins_may_stand_elsewhere(missing, tmp_path):
    write(tmp_path / "elsewhere", "machine api.wandb.ai login user password secret\n")
    assert missing(NETRC=str(tmp_path / "elsewhere")) is None
    (tmp_path / "elsewhere").rename(tmp_path / "_netrc")
    assert missing() is None
    write(tmp_path / ".netrc", "")
    assert missing() == "api.wandb.ai"


def test_settings_may_keep_everything_on_the_disk(missing, tmp_path):
    write(tmp_path / "work" / "wandb" / "settings", "[default]\nmode = offline\n")
    assert missing() is None
    assert missing(WANDB_MODE="online") == "api.wandb.ai"


@pytest.mark.parametrize("text", ["no settings", "[default\n", "\x00"])
def test_files_that_cannot_be_read_say_nothing(missing, tmp_path, text):
    write(tmp_path / ".config" / "wandb" / "settings", text)
    write(tmp_path / ".netrc", text)
    assert missing() == "api.wandb.ai"
