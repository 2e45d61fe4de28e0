"""The contract of an engine adapter, as tests: whatever a user declares reaches the engine or is refused by name.

```python
from pytest_llmperf.testing import EngineContract


class TestMyEngine(EngineContract):
    engine = MyEngine()
    model = "org/model"
```
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields, replace
from types import MappingProxyType
from typing import Any, ClassVar

from pytest_llmperf.engines.base import PORTABLE, Command, Counters, EffectiveConfig, Endpoint, Engine, EngineSettings
from pytest_llmperf.server_config import ServerConfig

#: A value of each portable key that is no engine's default.
SAMPLES: Mapping[str, Any] = MappingProxyType(
    {
        "tokenizer": "org/tokenizer",
        "tp": 2,
        "dp": 2,
        "pp": 2,
        "dtype": "bfloat16",
        "quantization": "fp8",
        "load_format": "dummy",
        "attention_backend": "flashinfer",
        "cuda_graph": False,
        "custom_all_reduce": False,
        "prefix_cache": False,
        "max_running_requests": 7,
        "context_length": 2051,
        "speculative": {"method": "ngram", "num_tokens": 4},
        "seed": 13,
        "nccl": {"NCCL_PROTO": "LL"},
    }
)
#: Flags of an engine's own in every form that a marker may hold, and the words that must be on the command line.
FORMS: Mapping[str, tuple[Any, tuple[str, ...]]] = MappingProxyType(
    {
        "contract_text": ("word", ("word",)),
        "contract_number": (4, ("4",)),
        "contract_fraction": (0.25, ("0.25",)),
        "contract_switch": (True, ()),
        "contract_list": ([1, "two"], ("1", "two")),
        "contract_mapping": ({"a": {"b": 1}}, ('{"a":{"b":1}}',)),
    }
)
_ENDPOINT = Endpoint("127.0.0.1", 45678, api_key="contract-key")


class _Silent:
    """A server that tells nothing."""

    log = ""

    def json(self, path: str) -> Any | None:
        return None

    def text(self, path: str) -> str | None:
        return None


class EngineContract:
    """Subclass it in a test module, give it the ``engine``, and pytest collects its tests.

    ``model`` is one that the engine takes; ``samples`` replaces values of portable keys that it would refuse.
    """

    engine: ClassVar[Engine]
    model: ClassVar[str] = "org/model"
    samples: ClassVar[Mapping[str, Any]] = {}

    def config(self, **said: Any) -> ServerConfig:
        return ServerConfig(engine=self.engine.name, model=self.model, **said)

    def command(self, config: ServerConfig, settings: EngineSettings | None = None) -> Command:
        return self.engine.command(config, settings or EngineSettings(), _ENDPOINT)

    def honoured(self) -> dict[str, Any]:
        """A value of each portable key that the engine says it honours."""
        return {key: value for key, value in {**SAMPLES, **self.samples}.items() if key in self.engine.portable}

    # -- what is declared arrives

    def test_its_portable_keys_exist(self) -> None:
        unknown = sorted(self.engine.portable - set(PORTABLE))
        assert not unknown, f"{self.engine.name} lists {unknown}, which llm_server does not have"

    def test_a_portable_key_arrives_or_is_refused_by_name(self) -> None:
        plain = self.command(self.config())
        for key, value in {**SAMPLES, **self.samples}.items():
            config = self.config(**{key: value})
            problems = self.engine.problems(config)
            if key in self.engine.portable:
                assert not problems, f"{self.engine.name} honours {key} and refuses {key}={value!r}: {problems}"
                assert self.command(config) != plain, f"{self.engine.name} drops {key}={value!r} in silence"
            else:
                named = any(self.engine.name in p and key in p for p in problems)
                assert named, f"{self.engine.name} does not honour {key}, and no problem names both: {problems}"

    def test_portable_keys_arrive_together(self) -> None:
        every = self.honoured()
        whole = self.command(self.config(**every))
        for key in every:
            less = self.command(self.config(**{k: v for k, v in every.items() if k != key}))
            assert less != whole, f"{self.engine.name} drops {key} where {sorted(every)} are declared together"

    def test_its_own_flags_arrive(self) -> None:
        for name, (value, words) in FORMS.items():
            argv = self.command(self.config(flags={name: value})).argv
            named = [i for i, word in enumerate(argv) if word.lstrip("-").replace("-", "_").startswith(name)]
            assert named, f"{self.engine.name} drops its own flag {name}={value!r}"
            after = "=".join(argv[named[0] :]).split("=")
            missing = [word for word in words if word not in after]
            assert not missing, f"{self.engine.name} drops {missing} of its own flag {name}={value!r}: {argv}"

    def test_a_flag_is_one_flag_however_it_is_written(self) -> None:
        one = self.command(self.config(flags={"contract_number": 4}))
        for written in ({"--contract-number": 4}, {"contract-number": "4"}, {"contract_number": 4.0}):
            command = self.command(self.config(flags=written))
            assert command == one, f"{self.engine.name} makes another command of {written}: {command.argv}"

    def test_its_own_flags_win_over_portable_keys(self) -> None:
        for key, flag in self.engine.flags.items():
            if isinstance(flag, str) and key not in ("tp", "dp", "pp"):
                argv = self.command(self.config(**{key: self.honoured()[key]}, flags={flag: "contract"})).argv
                assert "contract" in argv, f"{self.engine.name}={{{flag!r}: ...}} does not win over {key}"

    def test_variables_arrive_in_the_documented_order(self) -> None:
        """The marker's ``env``, else its ``nccl``, else the settings'."""
        settings = EngineSettings(env={"NCCL_ALGO": "settings", "NCCL_PROTO": "settings", "A": "settings", "B": "b"})
        nccl = {"NCCL_ALGO": "nccl", "NCCL_PROTO": "nccl"} if "nccl" in self.engine.portable else {}
        env = self.command(self.config(nccl=nccl, env={"NCCL_ALGO": "env", "A": "env"}), settings).env
        wanted = {"NCCL_ALGO": "env", "NCCL_PROTO": nccl.get("NCCL_PROTO", "settings"), "A": "env", "B": "b"}
        got = {name: env.get(name) for name in wanted}
        assert got == wanted, f"{self.engine.name} passes on {got} instead of {wanted}"

    # -- where it runs

    def test_the_users_command_comes_first(self) -> None:
        words = ("/opt/python", "-m", "their.server")
        argv = self.command(self.config(), EngineSettings(command=words)).argv
        assert argv[:3] == words, f"{self.engine.name} does not start with the command of the settings: {argv}"

    def test_it_listens_where_it_is_told(self) -> None:
        argv = self.command(self.config(), EngineSettings(bind="127.0.0.9")).argv
        told = "=".join(argv).split("=")
        assert "127.0.0.9" in told, f"{self.engine.name} is not told to listen on settings.bind: {argv}"
        assert "45678" in told, f"{self.engine.name} is not told its port: {argv}"

    def test_what_the_plugin_sets_is_refused(self) -> None:
        for name in ("host", "port"):
            problems = self.engine.problems(self.config(flags={name: "x"}))
            assert problems, f"{self.engine.name}={{{name!r}: ...}} would fight the plugin over it, and is not refused"

    def test_the_same_config_gives_the_same_command(self) -> None:
        assert self.command(self.config()) == self.command(self.config())

    # -- what it says

    def test_what_a_silent_server_resolved_to_is_unknown(self) -> None:
        config = self.config()
        effective = self.engine.effective(config, _Silent())
        known = {
            f.name: getattr(effective, f.name)
            for f in fields(EffectiveConfig)
            if getattr(effective, f.name) not in (None, {})
        }
        assert not known, f"{self.engine.name} says {known} of a server that told nothing"
        declared = replace(config, **self.honoured())
        assert self.engine.mismatches(declared, effective) == [], "what is unknown is no mismatch"
        assert self.engine.birthmark(_Silent()) is None, "what tells nothing has no mark of its own"

    def test_counters_that_are_not_there_are_unknown(self) -> None:
        for text in ("", "<html>", "x 1\n"):
            assert self.engine.counters(text) == Counters(), f"{self.engine.name} counts something in {text!r}"

    def test_requests_can_be_made(self) -> None:
        assert self.engine.model_name(self.config()), "requests need the name of a model"
        body = self.engine.request_body(self.config(), 16)
        assert json.loads(json.dumps(body)) == body

    def test_gpus_are_leased_for_what_runs_on_them(self) -> None:
        count = self.engine.gpu_count(self.config(**{k: 2 for k in ("tp",) if k in self.engine.portable}))
        assert count >= (2 if self.engine.uses_gpu and "tp" in self.engine.portable else 0)
