"""What a failed test says in pytest's own report: all that is known, since the table at the end says it no more."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_llmperf.records.results import Result
from pytest_llmperf.report import summary
from pytest_llmperf.report.explain import explain
from tests.report import samples

GUARD = {"name": "captured graphs", "tripped": True, "evidence": "3 of 9 batches outside", "advice": "raise max_bs"}


@pytest.mark.parametrize(
    "result",
    [
        replace(samples.REGRESSED, guards=(GUARD,), notes=("4.00 tokens in a chunk",), host_known=False),
        samples.BELOW_TARGET,
        samples.NOT_COMPARABLE,
        samples.INVALID,
        replace(samples.INCONCLUSIVE, reasons=("gpu clock: held down",)),
    ],
    ids=lambda r: r.verdict,
)
def test_everything_that_our_table_would_add_is_in_it_once(result: Result) -> None:
    lines = explain(result)
    for remark in summary.remarks(result):
        assert sum(remark in line for line in lines) == 1, remark
    for difference in result.differences:
        assert any(difference.name in line and f"{difference.baseline} -> {difference.now}" in line for line in lines)


def test_a_guard_comes_with_its_advice() -> None:
    assert "  note      captured graphs: 3 of 9 batches outside (raise max_bs)" in explain(
        replace(samples.REGRESSED, guards=(GUARD,))
    )
