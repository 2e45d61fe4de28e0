"""From exec to the first generated token: watch the process, its log, its port, and ask it for real."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from pytest_llmperf.engines.base import Endpoint, Engine
from pytest_llmperf.errors import LaunchError
from pytest_llmperf.server import diagnose, http, ports
from pytest_llmperf.server.logs import Log
from pytest_llmperf.server.process import EngineProcess
from pytest_llmperf.server.startup_progress import StartupProgress
from pytest_llmperf.server_config import ServerConfig

#: Seconds between looks at the health endpoint (at first), at the process while an answer is awaited, for compilers,
#: between plain progress lines.
FIRST_POLL_S = 0.02
POLL_S = 0.1
COMPILERS_S = 2.0
PLAIN_EVERY_S = 30.0
#: Seconds that an engine gets to end by itself after a log line that says it cannot become ready.
LAST_WORDS_S = 3.0
#: Characters of the log before its news in which such a line may have begun.
RECENT = 1 << 12
COMPLETIONS = "/v1/completions"
ELSE = "see what else answers there: a server of an earlier run, perhaps"


class PortLostError(LaunchError):
    """Somebody else has the port: worth another try on a fresh one."""


@dataclass(frozen=True)
class Start:
    """One start to wait for. ``keyed`` says whether the engine was given the endpoint's API key; ``local`` whether its
    processes are on this host; ``timeout`` counts seconds since the last sign of progress."""

    engine: Engine
    config: ServerConfig
    endpoint: Endpoint
    process: EngineProcess
    log: Log
    keyed: bool
    local: bool
    timeout: float
    say: Callable[[str], None]
    plain: bool


class Readiness:
    """Waits for one start. ``wait`` raises LaunchError, or returns once a real completion came back."""

    def __init__(self, start: Start) -> None:
        self._s = start
        self._began = time.monotonic()
        self._progress = StartupProgress(start.engine.progress_patterns, self._began)
        self._compilers_at = self._began
        self._said = ("", self._began)
        self._recent = ""
        self.notes: list[str] = []
        """What is worth saying of a server that became ready."""

    def wait(self) -> float:
        """Seconds from exec to the first token."""
        self._await_health()
        self._prove_identity()
        self._first_token()
        return time.monotonic() - self._began

    # -- watching

    def _watch(self, seconds: float) -> None:
        """Let ``seconds`` pass with an eye on the process, the log and the clock."""
        s = self._s
        alive = s.process.poll(seconds)
        now = time.monotonic()
        news = s.log.news()
        self._progress.feed(news, now)
        self._recent = self._recent[-RECENT:] + news
        if not alive:
            self._raise_crash()
        if any(p.search(self._recent) for p in s.engine.fatal_patterns):
            s.process.poll(LAST_WORDS_S)
            self._raise_crash()
        if s.local and now - self._compilers_at > COMPILERS_S:
            self._compilers_at = now
            self._progress.compilers(s.process.tree(), now)
        if now - self._progress.at > s.timeout:
            advice = "raise startup_timeout (llm_server marker, or --llmperf-startup-timeout) if it needs that long"
            stalled = diagnose.stall_advice(self._progress.stage, s.log.text())
            raise LaunchError(
                self._report(
                    f"showed no progress for {s.timeout:.0f} s (last sign: {self._progress.stage})",
                    f"{stalled}; {advice}" if stalled else advice,
                )
            )
        self._tell(now)

    def _tell(self, now: float) -> None:
        stage, at = self._said
        elapsed = now - self._began
        line = f"{self._s.config.label}: {self._progress.stage}, {elapsed:.0f} s"
        if not self._s.plain:
            if now - at >= 1.0:
                self._said = (stage, now)
                self._s.say(line)
            return
        kind = self._progress.stage.rstrip("0123456789 %")
        if kind != stage or now - at >= PLAIN_EVERY_S:
            self._said = (kind, now)
            self._s.say(line)

    def _raise_crash(self) -> None:
        s = self._s
        if s.process.failed is not None:
            raise LaunchError(
                f"{s.config.label}: the command could not be started: {s.process.failed}\n"
                f"set [tool.llmperf.engines.{s.config.engine}] command to a program that can be run here"
            )
        if s.process.lost and s.process.code is None:
            raise LaunchError(self._report("its supervisor ended: did somebody kill that process?", ""))
        text = s.log.text()
        cause = diagnose.find_cause(text, s.process.code, s.engine.crash_patterns, s.engine.fatal_patterns)
        message = self._report(str(cause), cause.advice)
        raise PortLostError(message) if diagnose.port_lost(text) else LaunchError(message)

    def _report(self, what: str, advice: str) -> str:
        return launch_report(self._s, what, advice, time.monotonic() - self._began)

    def _pause(self) -> float:
        """Seconds until the next look: short at first, longer for an engine that takes minutes and logs each look."""
        return max(FIRST_POLL_S, min(1.0, (time.monotonic() - self._began) / 50))

    # -- the steps

    def _await_health(self) -> None:
        answered = False
        while True:
            answer = self._ask("GET", self._s.engine.health_path)
            if answer.ok or (answer.status and not answered):
                self._check_listener()
            if answer.ok:
                return
            answered = answered or answer.status != 0
            self._watch(self._pause())

    def _check_listener(self) -> None:
        s = self._s
        if not s.local:
            return
        found = ports.listeners(s.endpoint.port, {p.pid for p in s.process.tree()})
        if found.ours and not found.foreign:
            return
        self._watch(0.0)  # it may have answered and died
        who = ", ".join(found.foreign) or "something that is not on this host"
        raise PortLostError(
            self._report(
                f"port {s.endpoint.port} is answered by {who}, not by this launch",
                "stop that program; or, if the engine runs in a container or on another host, set `remote = true` in "
                f"[tool.llmperf.engines.{s.config.engine}]",
            )
        )

    def _prove_identity(self) -> None:
        """The server serves the model that was asked for and, on another host, takes no key but the one made for it.

        On this host the socket has proven whose server it is: a front that ignores its key (a router, a proxy for
        prefill and decode, a fork) is worth a note there. A completion is what every engine guards with its key; lists
        of models are public in some.
        """
        s = self._s
        if s.keyed:
            stranger = replace(s.endpoint, api_key=secrets.token_hex(24))
            answer = self._ask("POST", COMPLETIONS, completion(s.engine, s.config), stranger)
            if answer.ok and not s.local:
                raise LaunchError(
                    self._report(
                        f"{s.endpoint.root_url} takes any API key, though this launch was given one",
                        f"{ELSE}; or, if it is a front that has no keys (a router, a proxy), set `api_key = false` in "
                        f"[tool.llmperf.engines.{s.config.engine}]",
                    )
                )
            if answer.ok:
                self.notes.append(
                    "the server takes any API key, though it was given one: whoever reaches it can use it"
                )
        elif not s.local:
            self.notes.append(f"no API key proves that {s.endpoint.root_url} is the server that was started")
        check_model(s.endpoint, s.engine.model_name(s.config), lambda *said: LaunchError(self._report(*said)))

    def _first_token(self) -> None:
        s = self._s
        while True:
            answer = self._ask("POST", COMPLETIONS, completion(s.engine, s.config), patience=float("inf"))
            problem = completion_problem(answer)
            if problem is None:
                return
            if s.keyed and answer.status in (401, 403):
                raise PortLostError(
                    self._report(f"{s.endpoint.root_url} refuses the API key that was made for this launch", ELSE)
                )
            self._watch(POLL_S)  # a death explains it better than its broken connection
            if answer.status not in (0, 503):
                raise LaunchError(self._report(f"is up but {problem}", ""))

    def _ask(
        self,
        method: str,
        path: str,
        body: dict[str, object] | None = None,
        endpoint: Endpoint | None = None,
        patience: float = 30.0,
    ) -> http.HttpAnswer:
        """One request, with an eye on the process for as long as the answer takes."""
        exchange = http.Exchange(endpoint or self._s.endpoint, method, path, body, timeout=30.0)
        end = time.monotonic() + patience
        try:
            while not exchange.ready(POLL_S):
                self._watch(0.0)
                if time.monotonic() > end:
                    return http.HttpAnswer(0, f"no answer in {patience:.0f} s")
            return exchange.answer()
        finally:
            exchange.close()


def completion(engine: Engine, config: ServerConfig) -> dict[str, object]:
    """The smallest request that makes a token, by the engine's own way of asking."""
    return {
        "model": engine.model_name(config),
        "prompt": "Hello",
        "max_tokens": 2,
        "temperature": 0,
        **engine.request_body(config, 2),
    }


def completion_problem(answer: http.HttpAnswer) -> str | None:
    """Why an answer to ``completion`` is no generated token; None when it is one."""
    if not answer.ok:
        said = diagnose.tail(answer.text, 3).strip(" |")
        return f"answered a completion with HTTP {answer.status}: {said}" if answer.status else f"cut it off: {said}"
    body = answer.json()
    usage = body.get("usage") if isinstance(body, dict) else None
    made = usage.get("completion_tokens") if isinstance(usage, dict) else None
    if not isinstance(made, int) or made < 1:
        return "its completion holds no token"
    return None


def check_model(endpoint: Endpoint, model: str, error: Callable[[str, str], LaunchError]) -> None:
    """Raise unless ``/v1/models`` names ``model``; a server without that endpoint is not held to it."""
    answer = http.get(endpoint, "/v1/models")
    body = answer.json() if answer.ok else None
    entries = body.get("data") if isinstance(body, dict) else None
    if not isinstance(entries, list):
        return
    served = [str(e.get("id")) for e in entries if isinstance(e, dict)]
    if served and model not in served:
        raise error(f"serves {', '.join(served)}, not {model}", "is another server answering there?")


def launch_report(start: Start, what: str, advice: str, seconds: float) -> str:
    """Cause first, then advice, the log's last lines, and where the rest is."""
    text = start.log.text()
    parts = [f"{start.config.label} did not start ({seconds:.1f} s): {what}"]
    if advice:
        parts.append(f"what to do: {advice}")
    parts.append(f"last lines of its log:\n{diagnose.tail(text)}")
    parts.append(f"full log: {start.log.path}")
    return start.log.masker("\n".join(parts))
