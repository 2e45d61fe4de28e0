"""``python -I entry.py``: this folder as a package of its own, without the package that it lies in."""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    __package__ = "supervision"
    from .guard import main

    del sys.path[0]  # it holds an ``http.py`` that is not the standard library's
    main()
