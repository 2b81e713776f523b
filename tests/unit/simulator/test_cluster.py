"""Clusters: routing, caches of full pages, failures that lose no token, scaling, prefill and decode apart."""

import numpy as np
import pytest

from fsm_spec.errors import UserError
from fsm_spec.simulator.cluster import Cluster, ClusterResults
from fsm_spec.simulator.cluster_options import parse_cluster
from fsm_spec.simulator.prefix_cache import PrefixCache
from fsm_spec.simulator.preparation import prepare
from fsm_spec.simulator.scenario import Scenario

BASE = Scenario(
    spec="uno_linear",
    model="llama-3.1-8b",
    hardware="h100",
    arrivals="poisson:40",
    input="512",
    output="32",
    requests=60,
    accept="0.8,0.7,0.6",
    seed=1,
)


def run(**options: object) -> ClusterResults:
    """Simulate the base scenario with options of a cluster."""
    prepared = prepare(BASE.model_copy(update=options))
    return Cluster(prepared, prepared.cluster).run()


def test_one_replica_is_the_single_run() -> None:
    """A cluster of one gives the same times and tokens as a run without one."""
    prepared = prepare(BASE)
    alone = prepared.simulation().run()
    cluster = Cluster(prepared, prepared.cluster).run()
    for name in ("first_token_ns", "finish_ns", "emitted", "rounds", "accepted"):
        assert getattr(alone.log, name).tolist() == getattr(cluster.log, name).tolist()
    assert alone.summary == cluster.summary
    assert alone.iterations == cluster.iterations


def test_routing_shares_the_load() -> None:
    """In turn gives equal counts; more replicas are faster; the same seed gives the same run."""
    turn = run(replicas=3, routing="round-robin")
    assert (20, 20, 20) == turn.loads
    least = run(replicas=3)
    assert 60 == sum(least.loads)
    assert least.summary.ttft_ms.p95 < run().summary.ttft_ms.p95
    assert least.log.finish_ns.tolist() == run(replicas=3).log.finish_ns.tolist()
    assert least.paid_s == pytest.approx(3 * least.summary.duration_s, rel=0.1)


def test_prefix_caches_save_prefill_and_routing_finds_them() -> None:
    """Shared text is prefilled once a replica; a router that looks for it finds more; without a cache nothing."""
    shared = {"shared_prefix": "12:2048", "replicas": 3}
    plain = run(**shared)
    cached = run(**shared, prefix_cache=True)
    aimed = run(**shared, prefix_cache=True, routing="prefix")
    assert 0 == plain.hit_tokens < cached.hit_tokens < aimed.hit_tokens
    assert aimed.summary.ttft_ms.mean < plain.summary.ttft_ms.mean
    assert 60 * 32 == aimed.summary.emitted_tokens
    turns = run(arrivals="poisson:2", turns="3:1", prefix_cache=True)
    assert turns.hit_tokens > 0


def test_a_failure_loses_no_token() -> None:
    """Requests of a failed replica go on elsewhere: all finish with their tokens, and later."""
    fine, broken = run(replicas=2), run(replicas=2, fail=("0:0.6:1",))
    assert broken.moved > 0
    assert (60, 60 * 32) == (broken.summary.finished, broken.summary.emitted_tokens)
    assert broken.summary.e2e_ms.mean > fine.summary.e2e_ms.mean
    assert 3 == len(broken.loads)
    # With nobody else up, what arrives meanwhile waits.
    alone = run(fail=("0:0.6:2",))
    assert (60, 60 * 32) == (alone.summary.finished, alone.summary.emitted_tokens)
    assert alone.summary.ttft_ms.max > 1e3


def test_autoscaling_follows_the_load() -> None:
    """A burst starts replicas, which take their time; a slower start is worse, and nothing exceeds the bound."""
    quick, slow = (run(autoscale=f"1:4:4:{seconds}") for seconds in (0.05, 1))
    assert 2 <= quick.most_replicas <= 4
    assert quick.summary.ttft_ms.p95 < slow.summary.ttft_ms.p95
    assert run(autoscale="1:1:4:1").most_replicas == 1


def test_prefill_and_decode_apart() -> None:
    """Decode is not disturbed by prefill, and KV that moves slowly delays what follows the first token."""
    mixed, apart, slow = run(replicas=2), run(split="1:1"), run(split="1:1:0.5")
    assert (60, 60 * 32) == (apart.summary.finished, apart.summary.emitted_tokens)
    assert apart.summary.tpot_ms.p95 < mixed.summary.tpot_ms.p95
    assert slow.summary.tpot_ms.p50 > apart.summary.tpot_ms.p50
    assert slow.log.first_token_ns.tolist() == apart.log.first_token_ns.tolist()
    assert 2 == apart.most_replicas


def test_a_cache_keeps_what_was_used_last() -> None:
    """Only as many pages as live requests leave; leading pages count, gaps end a find."""
    cache = PrefixCache(4)
    cache.insert(np.array([1, 2, 3]), used_pages=0)
    assert 2 == cache.find(np.array([1, 2, 9, 3]))
    cache.insert(np.array([7, 8]), used_pages=1)
    assert 3 == len(cache)
    assert 0 == cache.peek(np.array([3]))
    assert 1 == cache.peek(np.array([2, 1]))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"replicas": 0}, "--replicas 0 is no number"),
        ({"routing": "random"}, '--routing "random" is unknown'),
        ({"routing": "least-loaded"}, "--routing would have no effect"),
        ({"replicas": 2, "routing": "prefix"}, "add --prefix-cache"),
        ({"autoscale": "4:2:8:1"}, "no such numbers"),
        ({"autoscale": "1:2:8"}, "is unknown; write MIN:MAX"),
        ({"replicas": 9, "autoscale": "1:2:8:1"}, "lies outside 1 to 2"),
        ({"failures": ("2:1:1",)}, "there are replicas 0 to 0"),
        ({"failures": ("0:-1:1",)}, "below 0"),
        ({"split": "0:1"}, "at least one replica of each"),
        ({"split": "1:1", "replicas": 2}, "leave out --replicas"),
    ],
)
def test_bad_clusters_get_a_sentence(options: dict[str, object], words: str) -> None:
    """What means nothing, or has no effect, is refused."""
    given = {
        "replicas": None,
        "routing": None,
        "prefix_cache": False,
        "autoscale": None,
        "failures": (),
        "split": None,
        **options,
    }
    with pytest.raises(UserError, match=words):
        parse_cluster(**given)  # type: ignore[arg-type]


def test_what_a_cluster_cannot_do_is_refused() -> None:
    """Closed loops wait for finishes, and a cache needs text in common or requests that lose their pages."""
    with pytest.raises(UserError, match="by the clock"):
        run(arrivals="closed:4", replicas=2)
    with pytest.raises(UserError, match="no two requests have text in common"):
        run(replicas=2, prefix_cache=True, policy="reserve")
    with pytest.raises(UserError, match="--routing prefix would have no effect"):
        run(replicas=2, prefix_cache=True, routing="prefix")
    with pytest.raises(UserError, match="sdar leaves no pages to others: its kept rows see"):
        run(spec="sdar", accept=None, unmask="geometric:0.5", shared_prefix="2:64", prefix_cache=True)
