"""Hold a built wheel and sdist to what is to be published: the package's files that git knows, and what builds them.

    python tools/check_dist.py DIST

DIST is a folder with one wheel and one sdist. Exits 1 with what is missing or too much.
"""

from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

#: Beside the package in the sdist. Hatchling adds .gitignore and PKG-INFO by itself.
BESIDE = {".gitignore", "CHANGELOG.md", "LICENSE", "PKG-INFO", "README.md", "pyproject.toml"}


def problems(root: Path, dist: Path) -> list[str]:
    """Of the wheel and the sdist in ``dist`` against the checkout ``root``, a line for each file."""
    listed = subprocess.run(["git", "ls-files", "pytest_llmperf"], cwd=root, capture_output=True, text=True, check=True)
    package = set(listed.stdout.splitlines())
    [wheel], [sdist] = dist.glob("*.whl"), dist.glob("*.tar.gz")
    with zipfile.ZipFile(wheel) as archive:
        in_wheel = {name for name in archive.namelist() if ".dist-info/" not in name}
    with tarfile.open(sdist) as source:
        in_sdist = {name.partition("/")[2] for name in source.getnames()}
    found = []
    for archive_, held, wanted in ((wheel, in_wheel, package), (sdist, in_sdist, package | BESIDE)):
        found += [f"{archive_.name} lacks {name}" for name in sorted(wanted - held)]
        found += [f"{archive_.name} holds {name}" for name in sorted(held - wanted)]
    return found


def main() -> int:
    found = problems(Path(__file__).parents[1], Path(sys.argv[1]))
    for line in found:
        print(f"{line}: see [tool.hatch.build] in pyproject.toml", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
