"""Prometheus metrics of one server."""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from .admission import FairQueue
from .lifecycle import ModelHost

__all__ = ["Metrics"]

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)


class Metrics:
    """Counts what a server does, in a registry of its own."""

    def __init__(self, host: ModelHost, queue: FairQueue) -> None:
        self._registry = registry = CollectorRegistry()
        self._requests = Counter("decider_requests", "Requests answered.", ("route", "status"), registry=registry)
        self._seconds = Histogram(
            "decider_request_seconds", "Time to answer a request.", ("route",), registry=registry, buckets=_SECONDS
        )
        self._questions = Counter("decider_questions", "Questions answered.", registry=registry)
        self._tokens = Counter("decider_input_tokens", "Tokens read, shared ones once.", registry=registry)
        gauges = (
            ("decider_requests_waiting", "Requests in the queue.", lambda: queue.waiting),
            ("decider_requests_running", "Requests at the model.", lambda: queue.running),
            ("decider_model_ready", "1 while the model is loaded.", lambda: host.state == "ready"),
        )
        for name, text, value in gauges:
            Gauge(name, text, registry=registry).set_function(value)

    def count(self, route: str, status: int, seconds: float, facts: Mapping[str, object]) -> None:
        """Count one request; `facts` may have ``questions`` and ``tokens``."""
        self._requests.labels(route, str(status)).inc()
        self._seconds.labels(route).observe(seconds)
        for counter, name in ((self._questions, "questions"), (self._tokens, "tokens")):
            if isinstance(value := facts.get(name), int):
                counter.inc(value)

    def text(self) -> bytes:
        """Return the exposition text, version 0.0.4."""
        return generate_latest(self._registry)
