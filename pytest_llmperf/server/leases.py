"""GPU leases, host-wide: one lock file for each GPU's UUID, held for exactly as long as the server lives.

The lock belongs to an open file, not to a process: its descriptor is handed to the server's supervisor, so it outlasts
pytest when the server does (``--keep-servers``), and ends with the supervisor whatever killed it.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pytest_llmperf.errors import GpuDriverError, LaunchError
from pytest_llmperf.hardware import Inventory
from pytest_llmperf.server.state import Lock, named, owner, private_dir, try_lock
from pytest_llmperf.server.visible import CUDA, HIP, ROCR, Visible, visible

#: Memory (MiB) that another process may hold on a GPU before it counts as busy: a display or a monitor holds less.
TOLERATED_MIB = 128
POLL_S = 0.5
#: Seconds to wait for another worker of the same run, at least; then it is taken for a deadlock.
PEER_WAIT_S = 1800.0


@dataclass(frozen=True)
class Lease:
    """GPUs held by open, locked files. ``close`` gives up this process's hold; a supervisor's own hold lives on."""

    gpus: tuple[Visible, ...] = ()
    locks: tuple[Lock, ...] = ()

    @property
    def fds(self) -> tuple[int, ...]:
        """The descriptors that hold it, for the supervisor."""
        return tuple(lock.fd for lock in self.locks)

    @property
    def uuids(self) -> tuple[str, ...]:
        return tuple(v.gpu.uuid for v in self.gpus)

    def close(self) -> None:
        for lock in self.locks:
            lock.close()


@dataclass(frozen=True)
class Ask:
    """What a server needs. ``wait`` is in seconds.

    ``mine`` tells which GPUs this process itself holds, by UUID: waiting for those would be waiting forever. ``run`` is
    shared by all workers of one pytest run, whose leases are waited for in any case: they end with their tests.
    """

    count: int
    label: str
    wait: float = 0.0
    mine: Mapping[str, str] = field(default_factory=dict)
    run: str = ""


@dataclass(frozen=True)
class Blocked:
    """Who is in the way of one GPU; ``peer`` when it is another worker of this run."""

    text: str
    peer: bool = False


def acquire(
    ask: Ask, inventory: Inventory, state_dir: Path, environ: Mapping[str, str], say: Callable[[str], None]
) -> Lease:
    """Lease ``ask.count`` GPUs out of the visible ones. Raises LaunchError that says who is in the way.

    A host without GPUs leases none: what an engine then does is its own affair.
    """
    if not ask.count:
        return Lease()
    try:
        everything = inventory.gpus()
    except GpuDriverError as e:
        raise GpuDriverError(f"{ask.label}: needs {_gpus(ask.count)}, and {e}") from None
    if not everything:
        return Lease()
    usable = visible(everything, environ)
    lost = "".join(f"; the driver refuses {g.name}: {g.refused}" for g in everything if g.refused)
    if len(usable) < ask.count:
        raise LaunchError(
            f"{ask.label}: needs {_gpus(ask.count)}, {_through(len(usable), environ)}{lost}: lower tp*pp*dp, or show "
            "it more"
        )
    free = [v for v in usable if v.gpu.uuid not in ask.mine]
    if len(free) < ask.count:
        held = "; ".join(f"{v.token} by {ask.mine[v.gpu.uuid]}" for v in usable if v.gpu.uuid in ask.mine)
        raise LaunchError(
            f"{ask.label}: needs {_gpus(ask.count)}, and other servers of this session hold too many of the "
            f"{len(usable)} visible ones ({held}): use fewer servers at once"
        )
    folder = private_dir(state_dir / "gpus")
    began = time.monotonic()
    said = False
    while True:
        lease, blocked = _try(ask, free, inventory, folder)
        if lease is not None:
            return lease
        who = "; ".join(b.text for b in blocked)
        now = time.monotonic()
        limit = max(ask.wait, PEER_WAIT_S) if any(b.peer for b in blocked) else ask.wait
        if now - began >= limit:
            waited = f" after {now - began:.0f} s" if limit else ""
            raise LaunchError(
                f"{ask.label}: needs {_gpus(ask.count)}, {len(free) - len(blocked)} free{waited}: "
                f"{who}{lost}\nwhat to do: stop what holds them, make other GPUs visible, or wait with "
                "--llmperf-gpu-wait SECONDS"
            )
        if not said:
            said = True
            say(f"{ask.label}: waiting up to {limit:.0f} s for {_gpus(ask.count)}: {who}")
        time.sleep(POLL_S)  # of several locks one cannot wait for whichever is free first


def _try(ask: Ask, usable: Sequence[Visible], inventory: Inventory, folder: Path) -> tuple[Lease | None, list[Blocked]]:
    """A lease, or who was in the way of each GPU. All or nothing, so that two runs never wait for each other's half."""
    taken: list[tuple[Visible, Lock]] = []
    blocked: list[Blocked] = []
    for v in usable:
        path = folder / f"{re.sub(r'[^A-Za-z0-9.-]', '_', v.gpu.uuid)}.lock"
        lock = try_lock(path)
        if lock is None:
            facts = owner(path)
            peer = bool(ask.run) and facts.get("run") == ask.run
            blocked.append(Blocked(f"GPU {v.token} is leased to {named(facts)}", peer))
            continue
        if trouble := _trouble(v, inventory):
            blocked.append(Blocked(f"GPU {v.token} {trouble}"))
            lock.close()
            continue
        lock.sign(label=ask.label, run=ask.run)
        taken.append((v, lock))
        if len(taken) == ask.count:
            return Lease(tuple(v for v, _ in taken), tuple(lock for _, lock in taken)), blocked
    for _, lock in taken:
        lock.close()
    return None, blocked


def _trouble(v: Visible, inventory: Inventory) -> str:
    """Why a GPU that nobody leases cannot be taken; empty when it can."""
    try:
        found = inventory.holders(v.gpu.uuid)
    except GpuDriverError as e:
        return f"cannot be seen to be free: {e}"
    strangers = [h for h in found if h.mib is None or h.mib > TOLERATED_MIB]
    return f"is held by {', '.join(map(str, strangers))}" if strangers else ""


def _gpus(count: int) -> str:
    return f"{count} GPU{'s' if count != 1 else ''}"


def _through(count: int, environ: Mapping[str, str]) -> str:
    named = [f"{n}={environ[n]}" for n in (CUDA, ROCR, HIP) if n in environ]
    return f"{count} visible" + (f" through {', '.join(named)}" if named else "")
