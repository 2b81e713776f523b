"""The part of `system_fingerprint` that the start fixes: a digest of what a seeded answer depends on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from fsm_spec.executor.models.transformer import Transformer

# Blocks of a file that are read, evenly spread: another training changes nearly all of them.
_BLOCKS, _BLOCK = 1024, 4096


def fingerprint(model: Transformer, folder: Path, adapter: Path | None, facts: dict[str, Any]) -> str:
    """Digest weights, number format, versions, threads and `facts` (spec, device, mask id): 16 digits."""
    digest = hashlib.blake2b(digest_size=8)
    facts |= {
        "dtype": str(model.dtype),
        "threads": torch.get_num_threads(),
        "cpu": torch.backends.cpu.get_cpu_capability(),
        "versions": {name: metadata.version(name) for name in ("fsm-spec", "torch")},
    }
    digest.update(json.dumps(facts, sort_keys=True, default=str).encode())
    for path in (*_files(folder), *([] if adapter is None else _files(adapter))):
        digest.update(f"{path.name} {path.stat().st_size}".encode())
        for block in _sample(path):
            digest.update(block)
    return digest.hexdigest()


def _files(folder: Path) -> list[Path]:
    """List what a model or an adapter is made of."""
    if folder.is_file():
        return [folder]
    kinds = {".safetensors", ".json", ".jinja", ".bin"}
    return sorted(path for path in folder.iterdir() if path.suffix in kinds)


def _sample(path: Path) -> Iterator[bytes]:
    """Read a file of some megabytes whole, a larger one in blocks spread over it."""
    size = path.stat().st_size
    with path.open("rb") as file:
        if size <= _BLOCKS * _BLOCK:
            yield file.read()
            return
        for index in range(_BLOCKS):
            file.seek(index * (size - _BLOCK) // (_BLOCKS - 1))
            yield file.read(_BLOCK)
