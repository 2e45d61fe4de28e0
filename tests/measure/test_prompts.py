"""Prompts: exact length, no shared beginnings, the same again for a fresh server, never again for the same."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from pytest_llmperf.errors import MeasurementError
from pytest_llmperf.measure.prompts import WORDS, PromptLedger, TextPrompts, TokenPrompts, session_nonce
from tests.conftest import StartFake
from tests.measure.conftest import Measure

IDS = range(300, 1000)


def draws(ledger: PromptLedger, count: int, seed: str = "test_x", tokens: int = 16) -> list[list[int]]:
    prompts = TokenPrompts(IDS, ledger, ledger.open(seed))
    return [prompts.draw("measured", i, tokens) for i in range(count)]


def shared(a: list[int], b: list[int]) -> int:
    """Tokens of the common beginning."""
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False)))


def test_token_prompts_have_their_length_and_share_no_beginning() -> None:
    prompts = draws(PromptLedger(), 300)
    assert {len(p) for p in prompts} == {16}
    assert len({p[0] for p in prompts}) == 300
    assert {t for p in prompts for t in p} <= set(IDS)


def test_more_prompts_than_tokens_still_share_at_most_one() -> None:
    prompts = draws(PromptLedger(), 2000)
    assert max(shared(a, b) for a, b in itertools.combinations(prompts, 2)) == 1


def test_every_launch_sees_the_same_prompts_and_no_server_sees_one_twice() -> None:
    one, other = PromptLedger(), PromptLedger()
    first = draws(one, 20)
    assert draws(other, 20) == first
    again = draws(one, 20)
    assert not {p[0] for p in first} & {p[0] for p in again}
    assert draws(other, 20) == again


def test_a_kept_server_sees_other_prompts_in_the_next_session() -> None:
    first, second = (draws(PromptLedger(session_nonce()), 50, tokens=2) for _ in range(2))
    assert first != second
    assert len({tuple(p) for p in first + second}) > 95


def test_an_exhausted_vocabulary_is_said() -> None:
    ledger = PromptLedger()
    prompts = TokenPrompts([1, 2], ledger, ledger.open("x"))
    assert [prompts.draw("measured", i, 1) for i in range(2)] in ([[1], [2]], [[2], [1]])
    with pytest.raises(MeasurementError, match="no prompt of 1 tokens is left"):
        prompts.draw("measured", 2, 1)


TOKENIZERS: dict[str, Callable[[str], int]] = {
    "a token a word": lambda text: len(text.split()),
    "a token a letter": lambda text: len(text.encode()),
    "three letters a token": lambda text: sum(-(-len(word) // 3) for word in text.split()),
}


@pytest.mark.parametrize("name", TOKENIZERS)
def test_text_prompts_have_their_length(name: str) -> None:
    calls = 0

    def count(text: str) -> int:
        nonlocal calls
        calls += 1
        return TOKENIZERS[name](text)

    ledger = PromptLedger()
    prompts = TextPrompts(ledger, ledger.open("x"), count, overhead=5)
    texts = [prompts.draw("measured", i, 64) for i in range(50)]
    assert {TOKENIZERS[name](str(t)) for t in texts} == {59}
    assert len({str(t).split()[0] for t in texts}) == 50
    assert calls <= 50 * 8


def test_a_prompt_shorter_than_the_chat_template_is_refused() -> None:
    ledger = PromptLedger()
    with pytest.raises(MeasurementError, match="template alone takes 20"):
        TextPrompts(ledger, ledger.open("x"), overhead=20).draw("measured", 0, 16)


def test_words_are_distinct() -> None:
    assert len(set(WORDS)) == len(WORDS) > 150


@pytest.mark.parametrize("chat", [False, True])
def test_the_server_confirms_every_length(fake_server: StartFake, measure: Measure, chat: bool) -> None:
    server = fake_server("vllm", env={"FAKE_ITL_MS": 1})
    run = measure(server, prompt_tokens=40, chat=chat, repetitions=6)
    assert not run.measurement.invalid
    assert {r.prompt_tokens for r in run.requests} == {40}


def test_two_measurements_and_two_sessions_on_one_server_hit_no_cache(fake_server: StartFake, measure: Measure) -> None:
    server = fake_server("sglang", "--enable-cache-report", env={"FAKE_ITL_MS": 1})
    ledger = PromptLedger()
    for reuse in (ledger, ledger, PromptLedger(session_nonce())):
        assert not measure(server, reuse=reuse, prompt_tokens=32).measurement.invalid
    assert max(record["cached_tokens"] for record in server.truth) <= 1
    repeated = measure(server, reuse=PromptLedger(), prompt_tokens=32)  # what a forgotten ledger would do
    assert "came from the cache" in repeated.measurement.invalid[0]
