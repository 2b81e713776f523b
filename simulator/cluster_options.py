"""What a cluster is: replicas, routing, prefix caches, autoscaling, failures, prefill and decode apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from fsm_spec.errors import UserError
from fsm_spec.simulator.arrivals import number

ROUTINGS = ("round-robin", "least-loaded", "prefix")
AUTOSCALE_FORM = "MIN:MAX:TARGET:STARTUP, such as 1:8:32:90"
FAIL_FORM = "REPLICA:AT:DOWN, such as 0:60:120"
SPLIT_FORM = "PREFILL:DECODE[:GB_S], such as 2:2:50"
DEFAULT_TRANSFER_GB_S = 50.0  # one 400 Gb/s network card a GPU (aiconfigurator's inter_node_bw)
MOST_REPLICAS = 512


@dataclass(frozen=True)
class Autoscale:
    """Keep about `target` requests a replica, with `least` to `most` replicas; a new one needs `startup_s` seconds."""

    least: int
    most: int
    target: float
    startup_s: float


@dataclass(frozen=True)
class Failure:
    """Let a replica fail at a time and come back, empty, `down_s` later."""

    replica: int
    at_s: float
    down_s: float


@dataclass(frozen=True)
class Split:
    """Prefill on some replicas and decode on others; KV moves between them at `gb_s`."""

    prefill: int
    decode: int
    gb_s: float = DEFAULT_TRANSFER_GB_S


@dataclass(frozen=True)
class ClusterOptions:
    """Hold what was asked for; `replicas` is the number at the start."""

    replicas: int = 1
    routing: str = "least-loaded"
    prefix_cache: bool = False
    autoscale: Autoscale | None = None
    failures: tuple[Failure, ...] = field(default=())
    split: Split | None = None

    @property
    def alone(self) -> bool:
        """Say whether this is one replica without anything around it."""
        plain = self.replicas == 1 and not self.prefix_cache and self.autoscale is None
        return plain and not self.failures and self.split is None

    def describe(self) -> dict[str, str]:
        """Return the settings in words; empty for one replica alone."""
        if self.alone:
            return {}
        scale, split = self.autoscale, self.split
        found = {
            "replicas": f"{split.prefill} prefill, {split.decode} decode" if split else str(self.replicas),
            "routing": self.routing if self.replicas > 1 or scale or split else "",
            "prefix cache": "on" if self.prefix_cache else "",
            "autoscale": (
                f"{scale.least} to {scale.most}, {scale.target:g} requests each, {scale.startup_s:g} s to start"
                if scale
                else ""
            ),
            "failures": ", ".join(f"{f.replica} at {f.at_s:g} s for {f.down_s:g} s" for f in self.failures),
        }
        return {name: text for name, text in found.items() if text}


def parse_cluster(
    replicas: int | None,
    routing: str | None,
    prefix_cache: bool,  # noqa: FBT001 - as above
    autoscale: str | None,
    failures: Sequence[str],
    split: str | None,
) -> ClusterOptions:
    """Read the options; raises UserError for what means nothing or has no effect."""
    scale = _autoscale(autoscale) if autoscale is not None else None
    parts = _split(split) if split is not None else None
    if parts is not None and (replicas is not None or scale is not None or failures):
        raise UserError(
            "--split says how many replicas there are; leave out --replicas, --autoscale and --fail"
        )
    if scale is not None and replicas is not None and not scale.least <= replicas <= scale.most:
        raise UserError(
            f"--replicas {replicas} lies outside {scale.least} to {scale.most} of --autoscale; mend one"
        )
    count = replicas if replicas is not None else scale.least if scale else 1
    if parts is not None:
        count = parts.prefill + parts.decode
    if not 1 <= count <= MOST_REPLICAS:
        raise UserError(f"--replicas {count} is no number from 1 to {MOST_REPLICAS}; mend it")
    most = scale.most if scale else count
    if routing is not None and routing not in ROUTINGS:
        raise UserError(f'--routing "{routing}" is unknown; write {", ".join(ROUTINGS)}')
    if routing is not None and most == 1:
        raise UserError("--routing would have no effect on one replica; leave it out, or give --replicas")
    if routing == "prefix" and not prefix_cache:
        raise UserError("--routing prefix looks into prefix caches; add --prefix-cache")
    failed = tuple(_failure(text, most) for text in failures)
    return ClusterOptions(count, routing or "least-loaded", prefix_cache, scale, failed, parts)


def _numbers(text: str, option: str, form: str, counts: Sequence[int]) -> list[float]:
    words = text.split(":")
    if len(words) not in counts:
        raise UserError(f'{option} "{text}" is unknown; write {form}')
    values = [number(word, option, text, form) for word in words]
    if min(values) < 0:
        raise UserError(f'{option} "{text}" has a number below 0; write {form}')
    return values


def _autoscale(text: str) -> Autoscale:
    least, most, target, startup = _numbers(text, "--autoscale", AUTOSCALE_FORM, (4,))
    if least != int(least) or most != int(most) or not 1 <= least <= most <= MOST_REPLICAS or target <= 0:
        raise UserError(
            f'--autoscale "{text}" has no such numbers of replicas or target; write {AUTOSCALE_FORM}'
        )
    return Autoscale(int(least), int(most), target, startup)


def _failure(text: str, replicas: int) -> Failure:
    which, at, down = _numbers(text, "--fail", FAIL_FORM, (3,))
    if which != int(which) or which >= replicas:
        raise UserError(f'--fail "{text}": there are replicas 0 to {replicas - 1}; name one of them')
    return Failure(int(which), at, down)


def _split(text: str) -> Split:
    values = _numbers(text, "--split", SPLIT_FORM, (2, 3))
    prefill, decode = values[:2]
    speed = values[2] if len(values) == 3 else DEFAULT_TRANSFER_GB_S
    if prefill != int(prefill) or decode != int(decode) or min(prefill, decode) < 1 or speed <= 0:
        raise UserError(
            f'--split "{text}" needs at least one replica of each and a speed; write {SPLIT_FORM}'
        )
    return Split(int(prefill), int(decode), speed)
