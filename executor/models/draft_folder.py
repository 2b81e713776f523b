"""Folders of draft models as they are published: config.json beside safetensors, or beside a pickle of tensors."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from fsm_spec.errors import UserError
from fsm_spec.executor.models.config import ModelConfig, parse_config, read_json
from fsm_spec.executor.models.load import SafetensorsFolder

PICKLE = "pytorch_model.bin"


def read_draft_config(folder: Path) -> dict[str, Any]:
    """Read config.json of a draft model; raises UserError where there is none."""
    path = folder / "config.json"
    if not path.is_file():
        raise UserError(
            f'draft model folder "{folder}" has no config.json; give the folder of a draft model.'
        )
    return read_json(path)


@contextmanager
def open_draft_weights(folder: Path) -> Iterator[Mapping[str, torch.Tensor]]:
    """Open the weights of a draft model by name; a pickle is read as plain tensors, so it can run no code."""
    path = folder / PICKLE
    if path.is_file() and not (folder / "model.safetensors").is_file():
        try:
            loaded = torch.load(path, map_location="cpu", weights_only=True)
        except (OSError, RuntimeError, pickle.UnpicklingError) as error:
            first = str(error).partition("\n")[0]
            raise UserError(
                f'"{path}" is no sound file of tensors ({first}); fetch the model again.'
            ) from None
        if not isinstance(loaded, dict):
            raise UserError(f'"{path}" holds no tensors by name; fetch the model again.')
        yield loaded
        return
    with SafetensorsFolder(folder) as weights:
        yield weights


def layer_config(published: dict[str, Any], where: str) -> ModelConfig:
    """Translate the structure of a draft model's layers.

    Drafters carry class names of their own, so the model type says what their layers are.
    """
    return parse_config({**published, "architectures": None}, {}, where)


def integer(published: Mapping[str, Any], key: str, where: str, default: int | None = None) -> int:
    """Read an integer not below 0; raises UserError for anything else, and where there is none."""
    value = published.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise UserError(f'{where}: "{key}" has to be an integer not below 0, not {value!r}.')
    return value


def layer_numbers(published: Mapping[str, Any], key: str, where: str) -> tuple[int, ...]:
    """Read a list of layer numbers; raises UserError for anything else."""
    value = published.get(key)
    if not isinstance(value, list) or not all(type(item) is int for item in value):
        raise UserError(f'{where}: "{key}" has to be a list of layer numbers, not {value!r}.')
    return tuple(value)


def refuse_options(published: Mapping[str, Any], neutral: Mapping[str, object], where: str) -> None:
    """Raise UserError for a key that changes the computation in a way that is not implemented."""
    for key, value in neutral.items():
        if published.get(key, value) not in {value, None}:
            raise UserError(
                f'{where}: "{key}" = {published[key]!r} is not supported; use a draft model without it.'
            )
