"""The same server as ``server.c`` for machines without a C compiler: same arguments, same answers, same truth.

It keeps the schedule up to a few thousand chunks a second; the truth that it tells stays true beyond.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import math
import sys
import time
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Server:
    """Times in seconds."""

    itl: float
    ttft: float
    pattern: list[int]
    lockstep: bool
    truth: list[dict[str, Any]] = field(default_factory=list)
    numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                keep = "connection: close" not in head.lower()
                length = next((line for line in head.lower().split("\r\n") if line.startswith("content-length:")), ":0")
                body = await reader.readexactly(int(length.partition(":")[2]))
                if head.startswith("POST"):
                    await self.generate(writer, "/chat/" in head.partition("\r\n")[0], json.loads(body), keep)
                else:
                    self.tell(writer, head.startswith("GET /truth"), keep)
                await writer.drain()
                if not keep:
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    def tell(self, writer: asyncio.StreamWriter, truth: bool, keep: bool) -> None:
        models = {"object": "list", "data": [{"id": "truth", "object": "model", "max_model_len": 131072}]}
        data = json.dumps(self.truth if truth else models).encode()
        if truth:
            self.truth = []
        close = "" if keep else "connection: close\r\n"
        head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(data)}\r\n{close}\r\n"
        writer.write(head.encode() + data)

    async def generate(self, writer: asyncio.StreamWriter, chat: bool, ask: dict[str, Any], keep: bool) -> None:
        arrived = time.monotonic()
        total = max(1, ask.get("max_tokens") or ask.get("max_completion_tokens") or 16)
        number = next(self.numbers)
        asked = ask.get("stream_options") or {}
        kind = "chat.completion.chunk" if chat else "text_completion"
        common = {"id": f"cmpl-{number}", "object": kind, "created": 1, "model": "truth"}
        close = "" if keep else "connection: close\r\n"
        head = f"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n{close}\r\n"
        writer.write(head.encode())
        first = arrived + self.ttft
        if self.lockstep:
            first = math.floor(first / self.itl + 1) * self.itl
        record: dict[str, Any] = {"n": number, "t0": arrived, "at": [], "tokens": []}
        given = 0
        for size in itertools.cycle(self.pattern):
            n = min(size, total - given)
            given += n
            await asyncio.sleep(max(0.0, first + (given - 1) * self.itl - time.monotonic()))
            text = " tok" * n
            said: dict[str, Any] = {"delta": {"content": text}} if chat else {"text": text}
            choice = {"index": 0, **said, "logprobs": None, "finish_reason": "length" if given == total else None}
            usage = _usage(given) if asked.get("continuous_usage_stats") else None
            data = _event({**common, "choices": [choice], "usage": usage})
            record["at"].append(time.monotonic())
            record["tokens"].append(n)
            writer.write(_frame(data))
            if given == total:
                break
        end = _event({**common, "choices": [], "usage": _usage(total)}) if asked.get("include_usage") else b""
        writer.write(_frame(end + b"data: [DONE]\n\n") + b"0\r\n\r\n")
        self.truth.append(record)


def _usage(tokens: int) -> dict[str, int]:
    return {"prompt_tokens": 16, "completion_tokens": tokens, "total_tokens": tokens + 16}


def _event(value: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(value, separators=(",", ":")).encode() + b"\n\n"


def _frame(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


async def main(port: int, itl_ms: float, ttft_ms: float, pattern: str, lockstep: bool) -> None:
    server = Server(itl_ms / 1e3, ttft_ms / 1e3, [int(n) for n in pattern.split(",")], lockstep)
    listening = await asyncio.start_server(server.serve, "127.0.0.1", port, backlog=1024)
    print(listening.sockets[0].getsockname()[1], flush=True)
    await listening.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3]), sys.argv[4], sys.argv[5] == "1"))
