from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.fakes import Pools


@pytest.fixture
def pools(tmp_path: Path) -> Iterator[Pools]:
    """Makes pools; whatever they still run at the end is stopped, kept servers included."""
    from pytest_llmperf.server.kept import stop_kept

    made = Pools(tmp_path)
    yield made
    for pool in made.made:
        pool.close()
    stop_kept(tmp_path / "state")
