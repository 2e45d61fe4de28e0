"""``python -m tests.fake_engine`` or ``python /path/to/tests/fake_engine/__main__.py``, from any folder."""

from __future__ import annotations

import sys
from pathlib import Path

sys.dont_write_bytecode = False  # started by the dozen: compile once, whatever the environment says

if not __package__:  # started as a file: import the package by its folder, wherever we stand
    sys.path[0] = str(Path(__file__).resolve().parents[1])
    __package__ = "fake_engine"

if __name__ == "__main__":
    from .start import main

    sys.exit(main(sys.argv[1:]))
