"""Numbers of a server, in Prometheus' text format."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest


class Metrics:
    """Requests, lines and batches, without texts and addresses."""

    def __init__(self) -> None:
        self._registry = own = CollectorRegistry()
        names = ["path", "status"]
        self.requests = Counter("seq2seq_requests", "Requests", names, registry=own)
        self.lines = Counter("seq2seq_lines", "Lines to translate", registry=own)
        self.characters = Counter("seq2seq_characters", "Characters to translate", registry=own)
        self.tokens = Counter("seq2seq_tokens", "Tokens of the translations", registry=own)
        self.latency = Histogram("seq2seq_latency_seconds", "Time to an answer", registry=own)
        sizes = [1, 2, 5, 10, 20, 40, 80, 160]
        self.batches = Histogram(
            "seq2seq_batch_lines", "Lines of a batch", buckets=sizes, registry=own
        )
        self.waiting = Gauge("seq2seq_waiting_lines", "Lines that wait", registry=own)

    def text(self) -> bytes:
        """Return all metrics."""
        return generate_latest(self._registry)
