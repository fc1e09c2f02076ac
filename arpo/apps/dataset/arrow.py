"""The package pyarrow, which reads and writes Parquet files, and which nothing else here needs."""

from typing import Any

from arpo.errors import ConfigError


def pyarrow() -> Any:
    """Return the package, with its module `parquet`."""
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise ConfigError(
            "Parquet files need the package pyarrow, which is not installed: `uv pip install pyarrow`, then try again"
        ) from error
    return pyarrow
