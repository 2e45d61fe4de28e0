"""The session as a JSON file (``--llmperf-json``), and back."""

from __future__ import annotations

import json
import os
import secrets
from pathlib import Path
from typing import Any

from pytest_llmperf.errors import ConfigError
from pytest_llmperf.records import schema
from pytest_llmperf.records.results import SessionRecord
from pytest_llmperf.records.text import clean


def dump(session: SessionRecord, path: str | os.PathLike[str]) -> None:
    """Write ``session`` to ``path``, whole or not at all: a reader never sees half a file and a full disk leaves the
    old one. Folders above it are made. Raises ``ConfigError`` that names the file."""
    write(path, json.dumps(session.to_json(), indent=2, allow_nan=False) + "\n")


def write(path: str | os.PathLike[str], text: str, what: str = "report") -> None:
    """Replace ``path`` by ``text`` (UTF-8) at once. Raises ``ConfigError`` that names the file, ``what`` it is."""
    target = Path(path)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _replace(target, text)
    except OSError as e:
        raise ConfigError(f"cannot write the {what} {target}: {e.strerror or e}; give a path that is writable") from e


def _replace(target: Path, text: str) -> None:
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
    try:
        with temporary.open("x", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)


def load(path: str | os.PathLike[str]) -> SessionRecord:
    """Read what ``dump`` wrote. Raises ``ConfigError`` that names the file and what is wrong with it."""
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
        _check(data, path)
        return SessionRecord.from_json(data)
    except OSError as e:
        raise ConfigError(f"cannot read the report {path}: {e.strerror or e}") from e
    except KeyError as e:
        raise ConfigError(f"{path} is not a report of --llmperf-json: {e} is missing") from e
    except (ValueError, TypeError, AttributeError, IndexError, RecursionError) as e:
        raise ConfigError(f"{path} is not a report of --llmperf-json: {e}") from e


def _check(data: Any, path: str | os.PathLike[str]) -> None:
    """Against the schema, where jsonschema is installed: what is no report then says where it differs."""
    try:
        from jsonschema import Draft202012Validator
    except ImportError:
        return
    error = next(Draft202012Validator(schema.load()).iter_errors(data), None)
    if error is not None:
        raise ConfigError(
            f"{path} is not a report of --llmperf-json: {clean(error.json_path)}: {clean(error.message)[:300]}"
        )
