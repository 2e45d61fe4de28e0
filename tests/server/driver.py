"""A pytest-like parent in a process of its own, to be killed: opens a pool, gets its servers, says so, waits.

argv: one JSON object with ``folder``, ``configs`` (keywords of ``fakes.config``), ``settings``, ``command`` (of the
engines), ``inventory`` (a file) or ``nvml``, ``fork`` (fork a child that outlives us and keeps our descriptors).
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from pytest_llmperf.engines.base import EngineSettings
from pytest_llmperf.server.nvidia import NvmlInventory
from tests.server.fakes import ENGINES, FileInventory, Pools, config


def main() -> None:
    asked = json.loads(sys.argv[1])
    pools = Pools(Path(asked["folder"]))
    inventory = (
        FileInventory(Path(asked["inventory"]))
        if "inventory" in asked
        else NvmlInventory()
        if "nvml" in asked
        else None
    )
    engines = {n: EngineSettings(command=tuple(asked["command"])) for n in ENGINES} if "command" in asked else {}
    pool = pools(inventory, engines=engines, **asked.get("settings", {}))
    servers = [pool.get(config(**c)) for c in asked["configs"]]
    if asked.get("fork") and os.fork() == 0:
        time.sleep(30)
        os._exit(0)
    facts = [{"id": s.launch.id, "port": s.launch.endpoint.port, "gpus": s.launch.gpus} for s in servers]
    print(json.dumps(facts), flush=True)
    sys.stdin.read()
    pool.close()
    print(json.dumps(pools.said), flush=True)


if __name__ == "__main__":
    main()
