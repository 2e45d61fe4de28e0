"""llama.cpp's own HTTP server out of the ``xllamacpp`` wheel, started with ``python -m`` and this module's name.

Takes those flags of ``llama-server`` that the adapter writes, under the same names, so that one command line fits both.
The API key comes from ``LLAMA_API_KEY``: a command line is public on its host.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from typing import Any, NoReturn

from pytest_llmperf.errors import did_you_mean


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        _, _, unknown = message.partition("unrecognized arguments: ")
        known = [o for action in self._actions for o in action.option_strings]
        super().error(message + (did_you_mean(unknown.split(" ")[0], known) if unknown else ""))


def parser() -> argparse.ArgumentParser:
    """The flags that this server takes; those of ``llama-server`` that its command line shares with it."""
    p = _Parser(prog="llamacpp_serve", allow_abbrev=False)
    p.add_argument("--model", required=True)
    p.add_argument("--alias", default="")
    p.add_argument("--host", default="127.0.0.1")
    p.add_argument("--port", type=int, required=True)
    p.add_argument("--metrics", action="store_true")
    p.add_argument("--slots", action="store_true")
    p.add_argument("--threads", type=int, default=1)
    p.add_argument("--threads-batch", type=int)
    p.add_argument("--threads-http", type=int)
    p.add_argument("--ctx-size", type=int, default=0)
    p.add_argument("--parallel", type=int, default=1)
    p.add_argument("--batch-size", type=int)
    p.add_argument("--ubatch-size", type=int)
    p.add_argument("--n-gpu-layers", type=int, default=0)
    p.add_argument("--seed", type=int)
    p.add_argument("--flash-attn", choices=("on", "off", "auto"))
    p.add_argument("--cache-prompt", action=argparse.BooleanOptionalAction, default=False)
    p.add_argument("--cache-ram", type=int, default=0)
    p.add_argument("--spec-type")
    p.add_argument("--spec-ngram-simple-size-n", type=int)
    p.add_argument("--spec-ngram-simple-size-m", type=int)
    p.add_argument("--spec-draft-n-max", type=int)
    p.add_argument("--spec-synth-len", type=float)
    p.add_argument("--model-draft")
    p.add_argument("--verbosity", type=int)
    return p


def main(arguments: list[str]) -> None:
    """Serve until SIGINT or SIGTERM."""
    args = parser().parse_args(arguments)
    try:
        import xllamacpp
    except ImportError as error:
        sys.exit(f"No module named 'xllamacpp' ({error}): pip install 'pytest-llmperf[llamacpp]'")
    # held back before the server makes its threads, so that only sigwait below receives them
    stops = {signal.SIGINT, signal.SIGTERM}
    signal.pthread_sigmask(signal.SIG_BLOCK, stops)
    try:
        server = xllamacpp.Server(_params(xllamacpp, args))
    except RuntimeError as error:  # the library has written its reason to the log by itself
        sys.exit(f"llamacpp_serve: {error}")
    said = {k: v for k, v in vars(args).items() if v is not None and k not in ("host", "port")}
    print(f"llamacpp_serve: xllamacpp {xllamacpp.__version__} {json.dumps(said)}", file=sys.stderr, flush=True)
    print(f"llamacpp_serve: listening on {server.listening_address}", file=sys.stderr, flush=True)
    signal.sigwait(stops)
    sys.stderr.flush()
    os._exit(0)  # the library's own teardown waits for open connections


def _params(x: Any, args: argparse.Namespace) -> Any:
    p = x.CommonParams()
    p.model.path, p.hostnames, p.port = args.model, [args.host], args.port
    p.endpoint_metrics, p.endpoint_slots, p.ui = args.metrics, args.slots, False
    p.cpuparams.n_threads = args.threads
    p.cpuparams_batch.n_threads = args.threads_batch or args.threads
    p.n_ctx, p.n_parallel, p.n_gpu_layers, p.kv_unified = args.ctx_size, args.parallel, args.n_gpu_layers, False
    p.fit_params = False  # or it may shrink the context to the memory that it thinks is free
    p.cache_prompt, p.cache_ram_mib, p.cache_idle_slots = args.cache_prompt, args.cache_ram, args.cache_ram != 0
    if args.alias:
        p.model_alias = {args.alias}
    if key := os.environ.get("LLAMA_API_KEY"):
        p.api_keys = [key]
    if args.flash_attn:
        kinds = x.llama_flash_attn_type
        p.flash_attn_type = {
            "on": kinds.LLAMA_FLASH_ATTN_TYPE_ENABLED,
            "off": kinds.LLAMA_FLASH_ATTN_TYPE_DISABLED,
            "auto": kinds.LLAMA_FLASH_ATTN_TYPE_AUTO,
        }[args.flash_attn]
    for name, value in (
        ("n_threads_http", args.threads_http),
        ("n_batch", args.batch_size),
        ("n_ubatch", args.ubatch_size),
        ("verbosity", args.verbosity),
    ):
        if value is not None:
            setattr(p, name, value)
    if args.seed is not None:
        p.sampling.seed = args.seed
    _speculative(x, p.speculative, args)
    return p


def _speculative(x: Any, spec: Any, args: argparse.Namespace) -> None:
    if not args.spec_type:
        return
    known = {
        name.removeprefix("COMMON_SPECULATIVE_TYPE_").lower().replace("_", "-"): kind
        for name, kind in x.common_speculative_type.__members__.items()
    }
    if args.spec_type not in known:
        sys.exit(f"error: argument --spec-type: invalid choice: {args.spec_type!r} (choose from {', '.join(known)})")
    spec.types = [known[args.spec_type]]
    for owner, name, value in (
        (spec.ngram_simple, "size_n", args.spec_ngram_simple_size_n),
        (spec.ngram_simple, "size_m", args.spec_ngram_simple_size_m),
        (spec.draft, "n_max", args.spec_draft_n_max),
        (spec.draft.mparams, "path", args.model_draft),
        (spec, "synth_len", args.spec_synth_len),
    ):
        if value is not None:
            setattr(owner, name, value)


if __name__ == "__main__":
    main(sys.argv[1:])
