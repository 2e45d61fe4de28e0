"""A session whose every text is hostile."""

from __future__ import annotations

from dataclasses import replace

from pytest_llmperf.records.results import Difference, SessionRecord, message
from tests.report.samples import CURVE, FULL, GAP, SESSION, SGLANG, SWEEP, VLLM

#: Bytes that try to leave their place: markup, control sequences, bidi overrides, workflow commands, a surrogate.
EVIL = (
    "x</script><img src=x onerror=alert(1)>\x1b[2J\x1b]0;own\x07\r\n::error::pwned\n##[error]pwned"
    "%0A::set-env name=A::b ::add-mask::pwned |`a`|<b>*b*_c_[l](http://evil.example)\u202edesrever\u2028\x00\x9b31m\ud800'\"&$(id);--"
)


def hostile() -> SessionRecord:
    """FULL with EVIL in every place that a stranger's text can reach."""
    server = replace(
        SGLANG, engine=f"sglang{EVIL}", config={**SGLANG.config, "model": EVIL, EVIL: EVIL, "flags": {EVIL: [EVIL, 1]}},
        effective={"attention_backend": EVIL, EVIL: EVIL, "versions": {EVIL: EVIL}}, failures=(EVIL,),
        launches=tuple(replace(x, log=EVIL, cache_state=EVIL) for x in SGLANG.launches),
    )  # fmt: skip
    results = tuple(
        replace(
            r, nodeid=r.nodeid + EVIL, test=r.test + EVIL, engine=r.engine + EVIL, metric=r.metric + EVIL, unit=EVIL,
            reasons=(EVIL,), notes=(EVIL,), differences=(Difference(EVIL, EVIL, EVIL),), location=f"{EVIL}:3",
            guards=({"name": EVIL, "tripped": True, "evidence": EVIL, "advice": EVIL},), provenance={EVIL: EVIL},
            fingerprint={EVIL: EVIL, "runner_pool": EVIL}, workload={EVIL: EVIL},
            baseline=r.baseline and replace(r.baseline, path=EVIL),
            latencies=tuple(replace(x, metric=EVIL, percentiles={**x.percentiles, EVIL: 1.0}) for x in r.latencies),
            launches=tuple(replace(x, id=x.id + EVIL, role=EVIL) for x in r.launches),
        )
        for r in FULL.results
    )  # fmt: skip
    return SessionRecord(
        {**SESSION, "command": EVIL, "host": EVIL, "hardware": {"gpus": [{"name": EVIL}], "cpu": EVIL, "cores": 1},
         "versions": {EVIL: EVIL}, "messages": [message("unused", EVIL)], "started": EVIL},
        (server, VLLM), results,
        (replace(GAP, test=EVIL, engine=EVIL, reference=EVIL, unit=EVIL),),
        (replace(SWEEP, name=EVIL, base={EVIL: EVIL}, effects=tuple(
            replace(e, knob=EVIL, setting=EVIL, failure=e.failure and EVIL) for e in SWEEP.effects)),),
        (replace(CURVE, test=EVIL, engine=EVIL),),
    )  # fmt: skip
