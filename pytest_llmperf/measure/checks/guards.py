"""Guards on the measurement itself: was this client fast enough, did the values drift."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_llmperf.measure.client.request_outcome import RequestOutcome, delay_p99_ms
from pytest_llmperf.measure.limits import Limits
from pytest_llmperf.measure.metrics import Guard
from pytest_llmperf.measure.steady import moved, trend_p


def delay_guard(outcomes: Sequence[RequestOutcome], itl_ms: float, limits: Limits) -> list[Guard]:
    """User minus kernel stamps against the inter-token latency; nothing to say without kernel stamps."""
    delay = delay_p99_ms(outcomes)
    if delay is None or not itl_ms > 0:
        return []
    share = delay / itl_ms
    text = f"the client read its chunks {delay:.3f} ms late (p99), {share:.1%} of an inter-token gap"
    advice = "give the client a core of its own"
    return [Guard("client delay", share > limits.client_delay, text, advice, share, limits.client_delay)]


def client_guard(cpu_s: float, wall_s: float, limit: float) -> Guard:
    """CPU of the thread that sends and reads, as a share of one core."""
    share = cpu_s / wall_s if wall_s > 0 else 0.0
    text = f"the client used {share:.1%} of one core"
    return Guard("client cpu", share > limit, text, "spread the load over several clients", share, limit)


def drift_guard(values: Sequence[float], limits: Limits, *, on_cpu: bool) -> list[Guard]:
    """A trend over the repetitions (the parts of a load's window): the server was not steady, or became slower or
    faster under our hands. ``on_cpu``: the engine is made for CPUs."""
    if len(values) < 4:
        return []
    change = moved(values)
    limit = limits.drift_cpu if on_cpu else limits.drift
    text = f"the decode rate moved by {change:+.1%} from first to last of {len(values)} values"
    tripped = False
    if abs(change) > limit:
        p = trend_p(values)
        tripped = p < limits.drift_p
        text += f" (Kendall p = {p:.3f})"
    return [Guard("drift", tripped, text, "warm up longer, or look for a cause (clocks, heat)", abs(change), limit)]
