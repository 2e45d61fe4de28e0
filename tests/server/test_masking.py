from __future__ import annotations

from pytest_llmperf.server.masking import Environment, Masker, printable, secrets_of
from pytest_llmperf.server_config import ServerConfig, is_secret, mask


def test_secret_names() -> None:
    for name in ("HF_TOKEN", "--api-key", "apiKey", "AWS_SECRET_ACCESS_KEY", "DB_PASSWORD", "accessToken"):
        assert is_secret(name), name
    for name in ("tokenizer_path", "max_tokens", "--enable-prompt-tokens-details", "TOKENIZERS_PARALLELISM", "author"):
        assert not is_secret(name), name


def test_mask_reaches_nested_values_and_leaves_numbers() -> None:
    masked = mask({"HF_TOKEN": "hf_x", "token_budget": 4, "draft": {"api_key": "k", "steps": 3}, "n": None})
    assert masked == {"HF_TOKEN": "***", "token_budget": 4, "draft": {"api_key": "***", "steps": 3}, "n": None}


def test_a_config_shows_no_secret_and_is_the_same_whatever_the_secret() -> None:
    one = ServerConfig("vllm", "m", env={"HF_TOKEN": "hf_one_secret"}, flags={"api_key": "sk-one"})
    two = ServerConfig("vllm", "m", env={"HF_TOKEN": "hf_two_secret"}, flags={"api_key": "sk-two"})
    assert "secret" not in repr(one)
    assert "sk-one" not in repr(one)
    assert one == two


def test_a_config_shows_no_login_of_an_address() -> None:
    config = ServerConfig(
        "vllm", "http://u:hidden@h/org/m", env={"HTTPS_PROXY": "http://u:hidden@proxy:1"}, tokenizer="t"
    )
    assert "hidden" not in repr(config) + config.label
    assert config.canonical()["env"] == {"HTTPS_PROXY": "http://***@proxy:1"}


def test_configs_that_differ_in_a_tokenizer_differ() -> None:
    assert ServerConfig("vllm", "m", flags={"tokenizer_path": "a"}) != ServerConfig(
        "vllm", "m", flags={"tokenizer_path": "b"}
    )


def test_masker_replaces_the_longest_first_and_passwords_in_addresses() -> None:
    masker = Masker(["secret", "secret-and-more"])
    assert masker("a secret-and-more b") == "a *** b"
    assert masker("http://user:pw@host/x") == "http://***@host/x"
    assert repr(masker) == "Masker(2 secrets)"


def test_words_are_not_taken_for_secrets() -> None:
    assert Masker(["none", ""])("none of it") == "none of it"


def test_secrets_of_environments_and_flags() -> None:
    found = secrets_of({"HF_TOKEN": "t1", "PROXY": "http://u:hidden@h:1", "N": 1, "draft": {"password": "p1"}})
    assert found == {"t1", "hidden", "p1"}


def test_an_environment_hides_its_values() -> None:
    env = Environment({"HF_TOKEN": "hf_x"})
    assert "hf_x" not in repr(env)
    assert "hf_x" not in f"{env}"


def test_printable() -> None:
    assert printable("a\x1b[31mred\x1b[0m\x07\x00b\x1b]0;title\x07c\u202ed") == "aredbcd"
    assert printable("10%\r20%\r\nend\r") == "10%\n20%\nend\n"
