"""``llmperf servers list | stop``: what ``--keep-servers`` left up."""

from __future__ import annotations

import argparse

from pytest_llmperf.baselines.series import utc
from pytest_llmperf.cli.shared import add_json, grid, print_grid, print_json, say
from pytest_llmperf.report.grids import Column
from pytest_llmperf.server import kept
from pytest_llmperf.server.state import state_dir

_COLUMNS = (
    *(Column("launch"), Column("server"), Column("model", drop=2), Column("address"), Column("GPUs", drop=1)),
    *(Column("started", drop=3), Column("state")),
)


def add(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    listed = actions.add_parser("list", help="List the kept servers", description="List the kept servers")
    listed.set_defaults(action=_list)
    add_json(listed)
    stop = actions.add_parser("stop", help="Stop kept servers", description="Stop kept servers (default: all of them)")
    stop.add_argument("ids", nargs="*", metavar="ID", help="Launch id, or its beginning")
    stop.set_defaults(action=_stop)


def run(args: argparse.Namespace) -> int:
    code: int = args.action(args)
    return code


def _list(args: argparse.Namespace) -> int:
    state = state_dir()
    rows = [
        (
            *(k.id, k.label, k.model, f"{k.host}:{k.port}", ", ".join(k.gpus) or "-", utc(k.started_at)),
            "in use" if kept.in_use(k, state) else "idle",
        )
        for k in kept.list_kept(state)
    ]
    if args.json:
        print_json([dict(zip((c.title for c in _COLUMNS), row, strict=True)) for row in rows])
    elif rows:
        print_grid(grid(_COLUMNS, rows))
    else:
        say("no kept servers")
    return 0


def _stop(args: argparse.Namespace) -> int:
    for launch in kept.stop_kept(state_dir(), args.ids) or ["no kept servers"]:
        say(launch if launch.startswith("no ") else f"stopped {launch}")
    return 0
