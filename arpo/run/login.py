"""Whether somebody is logged in at Weights & Biases: wandb itself finds out after the warm start."""

from collections.abc import Mapping
from configparser import ConfigParser
from configparser import Error as SettingsError
from netrc import NetrcParseError, netrc
from pathlib import Path
from urllib.parse import urlsplit

SILENT = ("offline", "disabled", "dryrun")
"""Values of WANDB_MODE with which nothing is sent."""
CREDENTIALS = ("WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE", "WANDB_DISABLED")
SERVER = "https://api.wandb.ai"


def missing_login(environ: Mapping[str, str], home: Path, folder: Path) -> str | None:
    """Return the host at which nobody is logged in; None where somebody is, or where nothing is sent to one.

    The places are those where wandb 0.31 looks: variables, its settings, and the netrc file that `wandb login` writes.

    Args:
        environ: The variables.
        home: The person's folder.
        folder: The one where the run is started.
    """
    settings = _settings(Path(environ.get("WANDB_CONFIG_DIR") or home / ".config" / "wandb"), folder / "wandb")
    mode = environ.get("WANDB_MODE") or settings.get("mode")
    if mode in SILENT or any(environ.get(name) for name in CREDENTIALS) or "api_key" in settings:
        return None
    host = urlsplit(environ.get("WANDB_BASE_URL") or settings.get("base_url") or SERVER).netloc
    known = _logins(environ, home)
    return None if host in known or "default" in known else host


def _settings(*folders: Path) -> dict[str, str]:
    parser = ConfigParser(interpolation=None)
    try:
        parser.read([folder / "settings" for folder in folders])
    except (SettingsError, UnicodeDecodeError):
        return {}
    return dict(parser["default"]) if "default" in parser else {}


def _logins(environ: Mapping[str, str], home: Path) -> frozenset[str]:
    named = environ.get("NETRC")
    for path in [Path(named).expanduser()] if named else [home / ".netrc", home / "_netrc"]:
        try:
            return frozenset(netrc(str(path)).hosts)
        except FileNotFoundError:
            continue
        except (OSError, NetrcParseError):
            break
    return frozenset()
