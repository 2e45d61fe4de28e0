"""nccl={...}: names, values, and what is said about the wrong ones."""

from __future__ import annotations

import pytest

from pytest_llmperf.engines import nccl
from pytest_llmperf.errors import ConfigError


def test_the_founding_case() -> None:
    declared = {
        "proto": "LL",
        "algo": "Ring",
        "p2p_level": "SYS",
        "max_nchannels": 16,
        "buffsize": 16_777_216,
        "nthreads": 512,
    }
    assert nccl.variables(declared, "t") == {
        "NCCL_PROTO": "LL",
        "NCCL_ALGO": "Ring",
        "NCCL_P2P_LEVEL": "SYS",
        "NCCL_MAX_NCHANNELS": "16",
        "NCCL_BUFFSIZE": "16777216",
        "NCCL_NTHREADS": "512",
    }


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (True, "1"),
        (False, "0"),
        (0, "0"),
        (7, "7"),
        ("  LL128 ", "LL128"),
        ("^LL128", "^LL128"),
        ("LL,Simple", "LL,Simple"),
    ],
)
def test_values_become_text(given: object, text: str) -> None:
    assert nccl.variables({"PROTO" if isinstance(given, str) else "nvls_enable": given}, "t").popitem()[1] == text


@pytest.mark.parametrize("name", ["proto", "PROTO", "NCCL_PROTO", "nccl_proto"])
def test_either_case_with_or_without_the_prefix(name: str) -> None:
    assert nccl.variables({name: "LL"}, "t") == {"NCCL_PROTO": "LL"}


def test_forms_that_newer_releases_parse_pass() -> None:
    assert nccl.variables({"algo": "allreduce:tree,ring;broadcast:ring"}, "t")
    assert nccl.variables({"p2p_level": 4}, "t") == {"NCCL_P2P_LEVEL": "4"}


@pytest.mark.parametrize(
    ("declared", "said"),
    [
        ({"protto": "LL"}, "did you mean 'proto'?"),
        ({"MAX_CHANNELS": 16}, "did you mean 'MAX_NCHANNELS'?"),
        ({"bufsize": 1}, "did you mean 'buffsize'?"),
        ({"proto": "LL64"}, "is not one of LL, LL128, SIMPLE"),
        ({"p2p_level": "SYSTEM"}, "did you mean 'SYS'?"),
        ({"proto": ""}, "must be a text"),
        ({"proto": None}, "must be a text"),
        ({"nthreads": 51.2}, "must be a text, a whole number or a boolean"),
        ({"proto": "LL", "NCCL_PROTO": "LL"}, "twice"),
        ({3: "LL"}, "not a variable"),
    ],
)
def test_wrong_ones_are_named_with_their_place(declared: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError) as raised:
        nccl.variables(declared, "tests/perf.py::test_x")
    assert str(raised.value).startswith("tests/perf.py::test_x: ")
    assert said in str(raised.value)


def test_a_newer_variable_has_a_way_in() -> None:
    with pytest.raises(ConfigError, match=r"env=\{'NCCL_BRAND_NEW_KNOB': \.\.\.\}"):
        nccl.variables({"brand_new_knob": 1}, "t")


def test_the_table_has_what_tuning_guides_name() -> None:
    guides = "DEBUG IB_HCA SOCKET_IFNAME NVLS_ENABLE CUMEM_ENABLE MIN_NCHANNELS NET_GDR_LEVEL CROSS_NIC LAUNCH_MODE"
    assert set(guides.split()) <= nccl.VARIABLES
    assert all(name == name.upper() and not name.startswith("NCCL_") for name in nccl.VARIABLES)
