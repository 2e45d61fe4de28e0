"""A server that knows the truth: exact token schedule, logged send times. Compiled where there is a C compiler."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


class GroundTruth:
    """One running server (a context manager). ``kind`` is ``C`` or ``asyncio``."""

    def __init__(self, itl_ms: float, ttft_ms: float, pattern: str = "1", *, lockstep: bool = False) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="llmperf-truth-")
        self.kind, program = self._program()
        words = [*program, "0", str(itl_ms), str(ttft_ms), pattern, "1" if lockstep else "0"]
        self._process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())

    def _program(self) -> tuple[str, list[str]]:
        compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
        if compiler and sys.platform.startswith("linux"):
            binary = Path(self._folder.name) / "server"
            subprocess.run([compiler, "-O2", "-o", str(binary), str(HERE / "server.c")], check=True)
            return "C", [str(binary)]
        return "asyncio", [sys.executable, str(HERE / "server.py")]

    def truth(self) -> list[dict[str, Any]]:
        """Requests that have ended since the last call, in the order in which they ended."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/truth") as answer:
            return list(json.load(answer))

    def __enter__(self) -> GroundTruth:
        return self

    def __exit__(self, *exception: object) -> None:
        self._process.terminate()
        self._process.wait()
        self._folder.cleanup()
