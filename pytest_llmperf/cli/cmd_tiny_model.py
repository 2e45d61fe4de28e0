"""``llmperf tiny-model DIR``: the small random model, or the shape of a large one, for any engine."""

from __future__ import annotations

import argparse
from pathlib import Path

from pytest_llmperf.cli.shared import say
from pytest_llmperf.errors import ConfigError
from pytest_llmperf.models import dummy_model, tiny_model


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, metavar="DIR", help="Folder to write it to (made when missing)")
    parser.add_argument("--no-gguf", action="store_true", help="Leave out the GGUF file (for llama.cpp only)")
    parser.add_argument(
        "--shape",
        choices=dummy_model.SHAPES,
        help="Instead, configuration and tokenizer of a Llama of that size without weights, for load_format='dummy'",
    )


def run(args: argparse.Namespace) -> int:
    if args.shape:
        dummy_model.write(args.folder, args.shape)
        say(f"{args.folder}: configuration and tokenizer of shape {args.shape}; serve it with load_format='dummy'")
        return 0
    try:
        made = tiny_model.make(args.folder, gguf=not args.no_gguf)
    except OSError as error:
        raise ConfigError(f"{args.folder} cannot be written: {error.strerror}; name another folder") from error
    say(f"{made.folder}: Hugging Face folder, {made.parameters / 1e6:.1f} million random parameters")
    if made.gguf:
        say(f"{made.gguf}: the same as GGUF, for llama.cpp")
    return 0
