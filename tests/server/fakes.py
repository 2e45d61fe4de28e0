"""What these tests stand on: an engine adapter for the stand-in server, GPUs out of a JSON file, pools, waiting."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import psutil

from pytest_llmperf.engines.base import (
    Counters,
    EffectiveConfig,
    Engine,
    Mismatch,
    Probe,
    Starting,
    Translation,
)
from pytest_llmperf.engines.sglang import sglang_read
from pytest_llmperf.errors import GpuDriverError
from pytest_llmperf.hardware import Gpu, Holder, Inventory
from pytest_llmperf.server.pool import PoolSettings, ServerPool
from pytest_llmperf.server_config import ServerConfig

FAKE = Path(__file__).parents[1] / "fake_engine" / "__main__.py"


class FakeEngine(Engine):
    """Drives ``tests/fake_engine`` in SGLang's dialect, by the contract that real adapters follow."""

    name: ClassVar[str] = "fake"
    uses_gpu: ClassVar[bool] = False
    program = (sys.executable, str(FAKE))
    flags: ClassVar[Mapping[str, Translation]] = {"tp": "tp_size", "attention_backend": "attention_backend"}
    progress_patterns = (
        (re.compile(r"Loading safetensors checkpoint shards"), "loading weights"),
        (re.compile(r"Init torch distributed"), "joining ranks"),
    )
    fatal_patterns = (re.compile(r"SIGQUIT received"),)
    crash_patterns = ((re.compile(r"Rank (\d+) scheduler is dead"), r"the scheduler of rank \1 died"),)

    def own_words(self, start: Starting) -> tuple[str, ...]:
        return ("sglang", "--model-path", start.model)

    def own_flags(self, start: Starting) -> Mapping[str, Any]:
        key = None if start.config.env.get("NO_KEY") else start.endpoint.api_key
        return {"host": start.settings.bind, "port": start.endpoint.port, "enable_metrics": True, "api_key": key}

    def effective(self, config: ServerConfig, probe: Probe) -> EffectiveConfig:
        info = probe.json("/server_info") or {}
        return EffectiveConfig(attention_backend=info.get("attention_backend"), engine_version=info.get("version"))

    def mismatches(self, config: ServerConfig, effective: EffectiveConfig) -> list[Mismatch]:
        asked, got = config.attention_backend, effective.attention_backend
        return [Mismatch("attention_backend", asked, got, "replaced")] if asked and got and asked != got else []

    def birthmark(self, probe: Probe) -> str | None:
        return sglang_read.birthmark(probe)

    def counters(self, metrics: str) -> Counters:
        found = re.search(r"^sglang:generation_tokens_total\S* ([\d.e+]+)$", metrics, re.MULTILINE)
        return Counters(generation_tokens=float(found.group(1)) if found else None)


class FakeGpuEngine(FakeEngine):
    name: ClassVar[str] = "fakegpu"
    uses_gpu: ClassVar[bool] = True


ENGINES: dict[str, Engine] = {e.name: e for e in (FakeEngine(), FakeGpuEngine())}


class Pools:
    """Makes pools in a folder and closes them all at the end; ``said`` collects what they told people."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.said: list[str] = []
        self.made: list[ServerPool] = []

    def __call__(self, inventory: Inventory | None = None, **settings: Any) -> ServerPool:
        defaults: dict[str, Any] = {
            "log_dir": self.folder / "logs",
            "state_dir": self.folder / "state",
            "startup_timeout": 60.0,
            "stop_grace": 2.0,
        }
        pool = ServerPool(PoolSettings(**{**defaults, **settings}), ENGINES, self.said.append, inventory)
        self.made.append(pool)
        return pool


def config(*, engine: str = "fake", model: str = "fake-model", tp: int = 1, **fake: Any) -> ServerConfig:
    """A config whose ``FAKE_*`` variables are the given keywords; ``flags``, ``env`` and fields pass through."""
    own = {k: fake.pop(k) for k in ("flags", "attention_backend", "allow_mismatch", "startup_timeout") if k in fake}
    env = {**fake.pop("env", {}), **{f"FAKE_{k.upper()}": str(v) for k, v in fake.items()}}
    return ServerConfig(engine=engine, model=model, tp=tp, env=env, **own)


def until(condition: Callable[[], Any], seconds: float = 20.0) -> Any:
    """The first true value of ``condition``; fails when there is none in time."""
    end = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < end, f"still not true after {seconds} s"
        time.sleep(0.02)
    return value


def pids_in(path: Path) -> dict[str, list[int]]:
    """The stand-in's own record of its processes: kind to PIDs."""
    found: dict[str, list[int]] = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        kind, pid = line.split()
        found.setdefault(kind, []).append(int(pid))
    return found


def alive(pids: Iterable[int]) -> list[int]:
    """Those that run (a zombie has ended)."""

    def runs(pid: int) -> bool:
        try:
            return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False

    return [p for p in pids if runs(p)]


class FileInventory:
    """GPUs as a JSON file tells: ``{"gpus": [uuid, ...], "holders": {uuid: [[pid, name, mib], ...]}}``; its ``fails``
    is why no holders can be told."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def _facts(self) -> Any:
        return json.loads(self.path.read_text())

    def gpus(self) -> tuple[Gpu, ...]:
        return tuple(Gpu(u, "Fake H200", 141_000, "9.0", driver="999.1") for u in self._facts()["gpus"])

    def holders(self, uuid: str) -> tuple[Holder, ...]:
        facts = self._facts()
        if "fails" in facts:
            raise GpuDriverError(facts["fails"])
        return tuple(Holder(*h) for h in facts.get("holders", {}).get(uuid, ()))


class Driver:
    """``driver.py`` as a process; ``servers`` are the launches it reported once all were ready."""

    def __init__(self, **asked: Any) -> None:
        script = Path(__file__).with_name("driver.py")
        self.process = subprocess.Popen(
            [sys.executable, str(script), json.dumps(asked, default=str)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "the driver ended before its servers were ready"
        self.servers = json.loads(line)

    def finish(self) -> list[str]:
        """Let it close its pool; returns what it said."""
        out, _ = self.process.communicate(timeout=30)
        said: list[str] = json.loads(out.splitlines()[-1])
        return said

    def kill(self, number: int = signal.SIGKILL) -> None:
        self.process.send_signal(number)
        self.process.wait(10)
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()
