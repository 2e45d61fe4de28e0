"""Which revision of the source the tests are in, told apart from what was changed in it since."""

from __future__ import annotations

import hashlib
import os
import subprocess
from pathlib import Path

_TIMEOUT_S = 10.0


def revision(root: Path, baselines: Path) -> str | None:
    """``4f1c2d9a8b70``, the commit of the tree around ``root``; ``4f1c2d9a8b70+3fa94c21`` where tracked files differ
    from it, other digits for other changes. None outside git.

    ``baselines`` are no source: recording changes them. Files that git does not track (logs, reports) do not count.
    """
    commit = _git(root, "rev-parse", "--short=12", "HEAD")
    if commit is None:
        return None
    but = f":(exclude,literal){os.path.relpath(baselines, root)}"
    diff = ("diff", "--no-ext-diff", "--no-textconv", "--binary", "HEAD", "--", ":/")
    changed = _git(root, *diff, but)
    if changed is None:  # baselines elsewhere than in this repository
        changed = _git(root, *diff)
    return commit + (f"+{hashlib.sha256(changed.encode()).hexdigest()[:8]}" if changed else "")


def _git(root: Path, *words: str) -> str | None:
    try:
        said = subprocess.run(
            ["git", *words], cwd=root, capture_output=True, encoding="utf-8", errors="backslashreplace",
            timeout=_TIMEOUT_S, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return None
    return said.stdout.strip() if said.returncode == 0 else None
