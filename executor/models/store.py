"""The user's model cache: where models lie, how one gets there, and how a name finds it.

A cached model is a Hugging Face style folder with a `digest.json` beside it, and it is whole: it is written under a
temporary name and renamed. Environment variables of the executor are read here and nowhere else.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from fsm_spec.errors import UserError
from fsm_spec.executor.models.config import read_json
from fsm_spec.executor.models.gguf_file import GgufFile
from fsm_spec.executor.models.gguf_tokenizer import build_tokenizer, tokenizer_settings

Progress = Callable[[str, int, int], None]
"""Called with what is being done, how much of it is done, and how much there is."""

SMOLLM2 = "smollm2-135m"
# Names that mean a cached model, in lower case.
_ALIASES = {SMOLLM2: SMOLLM2, "smollm2-135m-instruct": SMOLLM2, "smollm2": SMOLLM2}
# A folder of another number is converted again.
_FORMAT = 1
_SHARD_BYTES = 4 << 30


def silent(_what: str, _done: int, _total: int) -> None:
    """Show no progress."""


def cache_root() -> Path:
    """Name the cache folder: FSM_SPEC_CACHE, else XDG_CACHE_HOME/fsm-spec, else ~/.cache/fsm-spec."""
    chosen, shared = os.environ.get("FSM_SPEC_CACHE"), os.environ.get("XDG_CACHE_HOME")
    if chosen:
        return Path(chosen).expanduser()
    return (Path(shared) if shared else Path.home() / ".cache") / "fsm-spec"


def child_environment(**changes: str) -> dict[str, str]:
    """Copy this process's environment, with changes, for a program that it starts."""
    return {**os.environ, **changes}


def model_folder(name: str) -> Path:
    """Name the folder of a cached model, which need not exist."""
    return cache_root() / "models" / name


def make_room(folder: Path) -> None:
    """Make the folder that a cached model's folder stands in; raises UserError where nothing can be written there."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder.parent):
            pass
    except OSError as error:
        raise UserError(
            f'the model cache "{folder.parent}" cannot be written ({error.strerror}); set FSM_SPEC_CACHE to a folder'
            " that can"
        ) from error


def resolve(name_or_path: str | Path) -> Path:
    """Find a model: a cached name (upper and lower case are equal), a model folder, or a GGUF file.

    Raises UserError with the command that fetches a known model, or the names that are known.
    """
    text = str(name_or_path)
    name = _ALIASES.get(text.lower())
    path = Path(text).expanduser()
    if path.is_dir() or path.is_file():
        return path
    if name is None:
        known = ", ".join(sorted(_ALIASES))
        raise UserError(f'there is no model "{text}": give a folder, a GGUF file, or one of {known}.')
    folder = model_folder(name)
    if not is_whole(folder):
        raise UserError(f'model "{name}" is not in the cache yet; run: fsm-spec model get {name}')
    return folder


def is_whole(folder: Path) -> bool:
    """Say whether a cached folder has all its files at their recorded sizes; reads no weights."""
    path = folder / "digest.json"
    if not path.is_file():
        return False
    digest = read_json(path)
    files = digest.get("files")
    if digest.get("format") != _FORMAT or not isinstance(files, dict):
        return False
    return all(_size(folder / name) == entry.get("bytes") for name, entry in files.items())


def verify(folder: Path, progress: Progress = silent) -> None:
    """Check the sha256 of every file of a cached folder; raises UserError where one differs."""
    files: dict[str, Any] = read_json(folder / "digest.json").get("files", {})
    for index, (name, entry) in enumerate(files.items()):
        progress("checking", index, len(files))
        if not (folder / name).is_file() or sha256(folder / name) != entry.get("sha256"):
            raise UserError(f'"{folder / name}" is damaged; delete "{folder}" and fetch the model again.')
    progress("checking", len(files), len(files))


def sha256(path: Path) -> str:
    """Compute the sha256 of a file as hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def converted(path: Path, progress: Progress = silent) -> Path:
    """Convert a GGUF file to the cache, unless a file of the same bytes was; returns the folder."""
    digest = sha256(path)
    folder = model_folder(f"gguf-{digest[:32]}")
    return folder if is_whole(folder) else convert(path, folder, digest, progress)


def convert(path: Path, folder: Path, digest: str, progress: Progress = silent) -> Path:
    """Write a GGUF file as a model folder, whole or not at all; `digest` is the file's sha256."""
    make_room(folder)
    with tempfile.TemporaryDirectory(prefix=".convert-", dir=folder.parent) as temporary:
        made = Path(temporary) / "model"
        made.mkdir()
        _write_folder(path, made, progress)
        files = {item.name: {"bytes": _size(item), "sha256": sha256(item)} for item in sorted(made.iterdir())}
        _write_json(made / "digest.json", {"format": _FORMAT, "source_sha256": digest, "files": files})
        if folder.exists() and not is_whole(folder):
            shutil.rmtree(folder)
        try:
            made.rename(folder)
        except OSError:
            # Another process was first; its folder is as good.
            if not is_whole(folder):
                raise
    return folder


def _write_folder(path: Path, made: Path, progress: Progress) -> None:
    """Write configuration, tokenizer and weights of a GGUF file."""
    progress("reading", 0, 1)
    source = GgufFile(path)
    progress("reading", 1, 1)
    _write_json(made / "config.json", source.published_config())
    _write_json(made / "generation_config.json", source.generation_config())
    _write_json(made / "tokenizer_config.json", tokenizer_settings(source.metadata))
    build_tokenizer(source.metadata, str(path)).save(str(made / "tokenizer.json"), pretty=False)
    _write_weights(source, made, progress)


def _write_weights(source: GgufFile, made: Path, progress: Progress) -> None:
    """Write the weights in shards that fit in memory, with an index where there are several."""
    shards: list[dict[str, torch.Tensor]] = [{}]
    index: dict[str, str] = {}
    held = 0
    for done, (name, tensor) in enumerate(source.weights(), 1):
        if held and held + tensor.nbytes > _SHARD_BYTES:
            save_file(shards[-1], made / f"model-{len(shards):05}.safetensors")
            shards[-1].clear()
            shards.append({})
            held = 0
        shards[-1][name] = tensor
        index[name] = f"model-{len(shards):05}.safetensors"
        held += tensor.nbytes
        progress("converting", done, source.tensor_count)
    if len(shards) == 1:
        save_file(shards[0], made / "model.safetensors")
        return
    save_file(shards[-1], made / f"model-{len(shards):05}.safetensors")
    _write_json(made / "model.safetensors.index.json", {"weight_map": index})


def _write_json(path: Path, value: object) -> None:
    """Write a JSON file that people can read."""
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _size(path: Path) -> int | None:
    """Count the bytes of a file, None where there is none."""
    return path.stat().st_size if path.is_file() else None
