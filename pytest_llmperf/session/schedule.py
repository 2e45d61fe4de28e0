"""Which tests share a server, in which order they run, and how xdist must spread them.

Tests that need the same config form a *group*; a test that needs several servers ties their groups together. A group
runs in one process, as neighbours, so that each config is launched once and stopped after its last test.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadFileScheduling, LoadGroupScheduling, LoadScopeScheduling

from pytest_llmperf.session.perf_test import PlannedMetric


@dataclass(frozen=True)
class Plan:
    """What a worker tells the controller after collection.

    ``groups`` maps nodeid to group, ``tests`` holds (test, engine) of every performance test there is, selected or
    not, ``gated`` counts metrics, ``said`` is for people, ``errors`` are misuses, ``planned`` maps nodeid to the
    metrics that must have a result.
    """

    groups: Mapping[str, str]
    tests: Sequence[tuple[str, str]] = ()
    gated: int = 1
    said: Sequence[str] = ()
    errors: Sequence[str] = ()
    planned: Mapping[str, Sequence[PlannedMetric]] = field(default_factory=dict)

    def write(self, path: Path) -> None:
        """Atomically: every worker writes the same plan."""
        aside = path.with_suffix(f".{os.getpid()}")
        aside.write_text(json.dumps(asdict(self)), encoding="utf-8")
        aside.replace(path)

    @classmethod
    def read(cls, path: Path) -> Plan:
        """An empty plan when no worker wrote one."""
        if not path.exists():
            return cls({})
        data = json.loads(path.read_text(encoding="utf-8"))
        planned = {nodeid: [PlannedMetric(*x) for x in metrics] for nodeid, metrics in data["planned"].items()}
        return cls(**{**data, "tests": [(test, engine) for test, engine in data["tests"]], "planned": planned})


def groups(needs: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Group of every test: connected components of tests (nodeid) over the config keys that they need."""
    parent: dict[str, str] = {}

    def root(key: str) -> str:
        parent.setdefault(key, key)
        while parent[key] != key:
            parent[key] = parent[parent[key]]
            key = parent[key]
        return key

    for keys in needs.values():
        for key in keys:
            parent[root(key)] = root(keys[0])
    return {nodeid: root(keys[0]) for nodeid, keys in needs.items() if keys}


def neighbours(items: Sequence[pytest.Item], group_of: Mapping[str, str]) -> list[pytest.Item]:
    """The same items with each group gathered at the place of its first member; stable otherwise."""
    members: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.nodeid in group_of:
            members.setdefault(group_of[item.nodeid], []).append(item)
    ordered: list[pytest.Item] = []
    for item in items:
        group = group_of.get(item.nodeid)
        if group is None:
            ordered.append(item)
        else:
            ordered.extend(members.pop(group, ()))
    return ordered


class GroupScheduling(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
    """xdist's scope scheduler with server groups as scopes. Every other test keeps the scope that ``--dist`` gives it:
    its class or module, its file, its group, or (load, worksteal) itself."""

    def __init__(self, config: pytest.Config, log: Any, plan: Path) -> None:
        super().__init__(config, log)
        self._plan_path = plan
        self._groups: Mapping[str, str] = {}
        self._others = _SCOPES.get(config.getoption("dist"))

    def schedule(self) -> None:
        """Raises ``pytest.UsageError`` with what the workers found wrong at collection."""
        plan = Plan.read(self._plan_path)
        if plan.errors:
            raise pytest.UsageError("\n".join(plan.errors))
        self._groups = plan.groups
        super().schedule()

    def remove_node(self, node: Any) -> str | None:
        """The test that a crashed worker was at. It counts as run, for it would crash each worker that gets it. The
        rest of its scope runs on another."""
        workload = self.assigned_work.pop(node)
        left = {scope: tests for scope, tests in workload.items() if not all(tests.values())}
        crashed = next((test for tests in left.values() for test, done in tests.items() if not done), None)
        if crashed is not None:
            left[self._split_scope(crashed)][crashed] = True
            self.workqueue.update({scope: tests for scope, tests in left.items() if not all(tests.values())})
            for other in self.assigned_work:
                self._reschedule(other)
        return crashed

    def _split_scope(self, nodeid: str) -> str:
        group = self._groups.get(nodeid)
        if group is not None or self._others is None:
            return group or nodeid
        return str(self._others._split_scope(self, nodeid))


_SCOPES = {"loadscope": LoadScopeScheduling, "loadfile": LoadFileScheduling, "loadgroup": LoadGroupScheduling}
