"""What the server counts, for Prometheus. Only the names of served models become labels, never what clients send."""

from __future__ import annotations

import os
import time
from collections import deque

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from orca.serving.messages import Reply

FOLDER = "PROMETHEUS_MULTIPROC_DIR"
"""The variable that lets the processes of a server count together; prometheus_client reads it when it is imported."""
_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 1024)
_KIND = b"text/plain; version=0.0.4; charset=utf-8"

REGISTRY = CollectorRegistry()
REQUESTS = Counter(
    "orca_requests", "Requests by model, protocol and status.", ("model", "protocol", "status"), registry=REGISTRY
)
SECONDS = Histogram(
    "orca_request_seconds", "Time to answer.", ("model", "protocol"), registry=REGISTRY, buckets=_SECONDS
)
BATCH_ROWS = Histogram("orca_batch_rows", "Rows computed at once.", ("model",), registry=REGISTRY, buckets=_ROWS)
VERSION = Gauge(
    "orca_model_version",
    "The version that a served reference has now.",
    ("model", "reference"),
    registry=REGISTRY,
    multiprocess_mode="mostrecent",
)
SWITCHES = Counter("orca_model_switches", "Changes of the served version.", ("model",), registry=REGISTRY)
STORE_UP = Gauge("orca_store_up", "Whether the store can be reached.", registry=REGISTRY, multiprocess_mode="livemin")

_pending: deque[tuple[str, str, int, float]] = deque()
_pending_rows: deque[tuple[str, int]] = deque()
_MOST_PENDING = 1000


def count(model: str, protocol: str, status: int, started: float) -> None:
    """Count one answered request. The counters are updated later, when nobody waits for a reply."""
    _pending.append((model, protocol, status, time.perf_counter() - started))
    if len(_pending) >= _MOST_PENDING:
        flush()


def count_rows(model: str, rows: int) -> None:
    """Count a computed batch."""
    _pending_rows.append((model, rows))


def flush() -> None:
    """Update the counters; only the event loop calls this."""
    while _pending:
        model, protocol, status, seconds = _pending.popleft()
        REQUESTS.labels(model, protocol, status).inc()
        SECONDS.labels(model, protocol).observe(seconds)
    while _pending_rows:
        model, rows = _pending_rows.popleft()
        BATCH_ROWS.labels(model).observe(rows)


def exposition() -> Reply:
    """Return all counts in Prometheus' text format; those of all processes if there are several."""
    flush()
    registry = REGISTRY
    if FOLDER in os.environ:
        from prometheus_client.multiprocess import MultiProcessCollector

        registry = CollectorRegistry()
        MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
    return Reply(generate_latest(registry), _KIND)
