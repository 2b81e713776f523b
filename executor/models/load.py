"""Load a model: configuration, weights and tokenizer, from a folder, a GGUF file, or the name of a cached model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch
from safetensors import SafetensorError, safe_open

from fsm_spec.errors import UserError
from fsm_spec.executor.adapter import bundled_adapter, load_adapter, refuse_adapter_alone
from fsm_spec.executor.models.config import ModelConfig, read_config, read_json, read_names
from fsm_spec.executor.models.fp8 import STORED, Fp8Weight, read_block, read_scaled
from fsm_spec.executor.models.store import Progress, converted, resolve, silent
from fsm_spec.executor.models.transformer import Transformer
from fsm_spec.executor.tokenizer import Tokenizer


@dataclass(frozen=True)
class LoadedModel:
    """Hold a model that is ready to run; `adapter` is the folder of the adapter it was given."""

    name: str
    folder: Path
    config: ModelConfig
    transformer: Transformer
    tokenizer: Tokenizer
    adapter: Path | None = None


@dataclass(frozen=True)
class ModelFiles:
    """Hold what a folder says beside weights."""

    folder: Path
    config: ModelConfig
    tokenizer: Tokenizer


def open_model(path_or_name: str | Path, progress: Progress = silent) -> ModelFiles:
    """Read configuration and tokenizer; paths, errors and GGUF files as in `load_model`."""
    folder = folder_of(path_or_name, progress)
    refuse_adapter_alone(folder)
    return ModelFiles(folder, read_config(folder), Tokenizer.from_folder(folder))


def load_model(
    path_or_name: str | Path,
    dtype: torch.dtype = torch.bfloat16,
    progress: Progress = silent,
    *,
    adapter: Path | None = None,
    gated: bool = False,
    int8: bool = False,
    files: ModelFiles | None = None,
) -> LoadedModel:
    """Load a Hugging Face folder, a GGUF file (converted to the cache at first), or a cached model by name.

    `adapter` is a folder; where none is given and rows are `gated`, one that lies with the model is taken. With `int8`
    the weights are rounded from `dtype` to 8-bit integers. `files` are the model's, where they were opened before.
    Raises UserError where a file is missing or broken, or the files do not fit each other.
    """
    files = files or open_model(path_or_name, progress)
    folder, config = files.folder, files.config
    if adapter is None and gated:
        adapter = bundled_adapter(folder)
    with SafetensorsFolder(folder) as weights:
        kind: type[Transformer] = Transformer
        if int8:
            from fsm_spec.executor.models.int8 import Int8Transformer  # noqa: PLC0415 -- it alone needs numba

            kind = Int8Transformer
        transformer = kind(config, weights, dtype, read_names(folder))
    if adapter is not None:
        transformer.adapter = load_adapter(adapter, config, transformer.rows_dtype)
    return LoadedModel(Path(path_or_name).name, folder, config, transformer, files.tokenizer, adapter)


def folder_of(path_or_name: str | Path, progress: Progress = silent) -> Path:
    """Give the folder that a model is loaded from; a GGUF file is converted first."""
    found = resolve(path_or_name)
    return load_gguf(found, progress) if found.is_file() else found


def load_gguf(path: Path, progress: Progress = silent) -> Path:
    """Convert a GGUF file to the cache, once per content, and return the folder."""
    return converted(path, progress)


class SafetensorsFolder(Mapping[str, torch.Tensor]):
    """Read tensors by name from model.safetensors, or from the shards that an index names, memory-mapped.

    8-bit floats come out multiplied by their scales; `stored` gives them as they are.
    """

    def __init__(self, folder: Path) -> None:
        config = folder / "config.json"
        self._block = read_block(read_json(config), str(config)) if config.is_file() else None
        self._stack = ExitStack()
        self._files: dict[str, Any] = {}
        index = folder / "model.safetensors.index.json"
        try:
            for name in self._shards(folder, index):
                self._open(folder / name)
        except BaseException:
            self._stack.close()
            raise

    def _shards(self, folder: Path, index: Path) -> list[str]:
        """List the files; names that point out of the folder are refused."""
        if (folder / "model.safetensors").is_file() or not index.is_file():
            return ["model.safetensors"]
        weight_map = read_json(index).get("weight_map")
        if not isinstance(weight_map, dict):
            raise UserError(f'"{index}" has no "weight_map"; fetch the model again.')
        shards = sorted({str(name) for name in weight_map.values()})
        if any(Path(name).name != name for name in shards):
            raise UserError(f'"{index}" names files outside its folder; fetch the model again.')
        return shards

    def _open(self, path: Path) -> None:
        """Open one file and note its tensors."""
        if not path.is_file():
            raise UserError(f'model folder "{path.parent}" has no {path.name}; fetch the model again.')
        try:
            file = self._stack.enter_context(safe_open(path, framework="pt"))
            self._files |= dict.fromkeys(file.keys(), file)
        except (OSError, SafetensorError) as error:
            raise UserError(
                f'"{path}" is no sound safetensors file ({error}); fetch the model again.'
            ) from None

    def __getitem__(self, name: str) -> torch.Tensor:
        tensor = self._read(name)
        return self.stored(name).dequantise() if tensor.dtype == STORED else tensor

    def stored(self, name: str) -> Fp8Weight:
        """Read a weight of 8-bit floats and its scales; raises UserError where they do not fit each other."""
        return read_scaled(name, self._read(name), self, self._block)

    def _read(self, name: str) -> torch.Tensor:
        """Read a tensor as it is stored; raises KeyError where there is none."""
        file = self._files[name]
        try:
            tensor: torch.Tensor = file.get_tensor(name)
        except SafetensorError as error:
            raise UserError(
                f'weight "{name}" cannot be read ({error}); use the model in another number format.'
            ) from None
        return tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
