"""The session as a JSON file (``--llmperf-json``), and back."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

from pytest_llmperf.errors import ConfigError
from pytest_llmperf.report.records import SessionRecord


def dump(session: SessionRecord, path: str | os.PathLike[str]) -> None:
    """Write ``session`` to ``path``, whole or not at all: a reader never sees half a file and a full disk leaves the
    old one. Folders above it are made. Raises ``ConfigError`` that names the file."""
    write(path, json.dumps(session.to_json(), indent=2, allow_nan=False) + "\n")


def write(path: str | os.PathLike[str], text: str) -> None:
    """Replace ``path`` by ``text`` (UTF-8) in one step. Raises ``ConfigError`` that names the file."""
    target = Path(path)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        fd, temporary = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    except OSError as e:
        raise ConfigError(
            f"cannot write the report {target}: {e.strerror or e}; give a path that can be written"
        ) from e
    try:
        with open(fd, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        umask = os.umask(0)
        os.umask(umask)
        Path(temporary).chmod(0o666 & ~umask)
        Path(temporary).replace(target)
    except OSError as e:
        raise ConfigError(
            f"cannot write the report {target}: {e.strerror or e}; give a path that can be written"
        ) from e
    finally:
        Path(temporary).unlink(missing_ok=True)


def load(path: str | os.PathLike[str]) -> SessionRecord:
    """Read what ``dump`` wrote. Raises ``ConfigError`` that names the file and what is wrong with it."""
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
        return SessionRecord.from_json(data)
    except OSError as e:
        raise ConfigError(f"cannot read the report {path}: {e.strerror or e}") from e
    except KeyError as e:
        raise ConfigError(f"{path} is not a report of --llmperf-json: {e} is missing") from e
    except (ValueError, TypeError, AttributeError, IndexError, RecursionError) as e:
        raise ConfigError(f"{path} is not a report of --llmperf-json: {e}") from e
