"""Metrics of several replicas on one page: each replica's own under the label `engine`, and those of the front."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

# The label of what happens before a request reaches a replica.
FRONT = "front"


class FrontMetrics:
    """Hold what the front counts: what waits, what was refused or ended here, and where requests went."""

    def __init__(self, model: str) -> None:
        self.model = model
        self.registry = CollectorRegistry()
        self.rejected = self._counter("fsm_spec:requests_rejected", "Requests refused, by code.", "code")
        self.success = self._counter(
            "vllm:request_success", "Requests at their end, by reason.", "finished_reason"
        )
        self.routed = self._counter(
            "fsm_spec:replica_requests", "Requests by replica, and what chose it.", "replica", "by"
        )
        self.hits = self._counter("fsm_spec:replica_prefix_pages", "Pages of prompts routed to.", "replica")
        self.lost = self._counter("fsm_spec:replica_losses", "Times that a replica was lost.", "replica")
        self.waiting = self._gauge("vllm:num_requests_waiting", "Requests in the queue.")
        self.up = self._gauge("fsm_spec:replica_up", "Whether a replica serves.", "replica")

    def _counter(self, name: str, about: str, *labels: str) -> Counter:
        return Counter(name, about, ("model_name", *labels), registry=self.registry)

    def _gauge(self, name: str, about: str, *labels: str) -> Gauge:
        return Gauge(name, about, ("model_name", *labels), registry=self.registry)

    def page(self, pages: Mapping[int, bytes]) -> bytes:
        """Give the front's metrics and those of the replicas on one page."""
        merged = CollectorRegistry()
        merged.register(_Merged([(FRONT, generate_latest(self.registry)), *_named(pages)]))
        return generate_latest(merged)


def _named(pages: Mapping[int, bytes]) -> Iterator[tuple[str, bytes]]:
    for replica, page in sorted(pages.items()):
        yield str(replica), page


class _Merged(Collector):
    """Give the families of several pages, each sample under the name of its engine."""

    def __init__(self, pages: list[tuple[str, bytes]]) -> None:
        self._pages = pages

    def collect(self) -> Iterable[Metric]:
        """Give each family once, with the samples of all pages."""
        families: dict[str, Metric] = {}
        for engine, page in self._pages:
            for family in text_string_to_metric_families(page.decode()):
                merged = families.setdefault(
                    family.name, Metric(family.name, family.documentation, family.type)
                )
                for sample in family.samples:
                    merged.add_sample(sample.name, {**sample.labels, "engine": engine}, sample.value)
        return families.values()
