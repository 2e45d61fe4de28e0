"""The stand-in engine itself: its schedule against its own truth, both dialects, every fault once."""

from __future__ import annotations

import openai
import pytest

from tests.conftest import StartFake


@pytest.mark.parametrize("dialect", ["sglang", "vllm"])
@pytest.mark.parametrize("chat", [False, True])
def test_the_openai_client_streams_every_token(fake_server: StartFake, dialect: str, chat: bool) -> None:
    server = fake_server(dialect, api_key="k3y")
    client = openai.OpenAI(base_url=server.base_url, api_key="k3y", max_retries=0)
    usage = {"include_usage": True}
    if chat:
        messages = [{"role": "user", "content": "hello there"}]
        stream = client.chat.completions.create(
            model="fake-model", messages=messages, max_tokens=20, stream=True, stream_options=usage
        )
        events = list(stream)
        text = "".join(e.choices[0].delta.content or "" for e in events if e.choices)
    else:
        stream = client.completions.create(
            model="fake-model", prompt=[5, 6, 7], max_tokens=20, stream=True, stream_options=usage
        )
        events = list(stream)
        text = "".join(e.choices[0].text for e in events if e.choices)
    assert len(text.split()) == 20
    assert events[-1].usage.completion_tokens == 20
    [record] = server.truth
    assert record["end"] == "ok"
    assert record["finish"] == "length"
    assert [row[3] for row in record["chunks"]] == [1] * 20
