"""Read GGUF files (package `gguf`) as if they were Hugging Face model folders: configuration and weights."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import gguf
import numpy as np
import numpy.typing as npt
import torch

from fsm_spec.errors import UserError
from fsm_spec.executor.models import architectures as names
from fsm_spec.executor.models.architectures import BY_GGUF, Architecture

# What numpy, and the reader on top of it, raise on bytes that are no GGUF file.
_BROKEN = (
    ValueError,
    KeyError,
    IndexError,
    OverflowError,
    OSError,
    MemoryError,
    TypeError,
    NotImplementedError,
)


# The largest vocabularies have 2^18 tokens; the reader makes a Python object of each element of an array.
_LONGEST_ARRAY = 1 << 22


class _Reader(gguf.GGUFReader):
    """Refuse to read past the end of the file, where the package's reader loops over empty arrays."""

    def _get_field_parts(
        self, orig_offs: int, raw_type: int
    ) -> tuple[int, list[npt.NDArray[Any]], list[int], list[gguf.GGUFValueType]]:
        if raw_type == gguf.GGUFValueType.ARRAY:
            # An array is its element type (4 bytes), its length (8 bytes), its elements.
            length = int(self._get(orig_offs + 4, np.uint64)[0])
            if length > _LONGEST_ARRAY:
                raise ValueError(f"it claims an array of {length} elements")
        return super()._get_field_parts(orig_offs, raw_type)

    def _get(
        self,
        offset: int,
        dtype: npt.DTypeLike,
        count: int = 1,
        override_order: Literal["I", "S", "<"] | None = None,
    ) -> npt.NDArray[Any]:
        if int(offset) + int(count) * np.dtype(dtype).itemsize > len(self.data):
            raise ValueError("the file ends in the middle of its data")
        return super()._get(offset, dtype, count, override_order)


class GgufFile:
    """Hold an open GGUF file of a known architecture.

    Raises UserError where the file is missing, broken, or of another architecture.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        if not path.is_file():
            raise UserError(f'there is no file "{path}"; give a GGUF file or a model folder.')
        try:
            self._reader = _Reader(path)
            self.metadata = {key: field.contents() for key, field in self._reader.fields.items()}
        except _BROKEN as error:
            raise UserError(f'"{path}" is no sound GGUF file ({error}); fetch it again.') from None
        self.architecture = self._known_architecture()

    def _known_architecture(self) -> Architecture:
        """Look up `general.architecture`."""
        name = self.metadata.get("general.architecture")
        if not isinstance(name, str) or name not in BY_GGUF:
            known = ", ".join(BY_GGUF)
            raise UserError(f'"{self.path}": GGUF architecture {name!r} is unknown; known are {known}.')
        return BY_GGUF[name]

    @property
    def tensor_count(self) -> int:
        """Count the tensors that `weights` gives, those of each expert apart."""
        stored = self._reader.tensors
        return sum(int(tensor.shape[-1]) if _is_of_experts(tensor.name) else 1 for tensor in stored)

    def published_config(self) -> dict[str, Any]:
        """Write the metadata as a Hugging Face config.json."""
        heads, hidden = self._number("attention.head_count"), self._number("embedding_length")
        shapes = {
            tensor.name: [int(size) for size in reversed(tensor.shape)] for tensor in self._reader.tensors
        }
        if "token_embd.weight" not in shapes:
            raise UserError(f'"{self.path}" has no token embedding; fetch it again.')
        config = {
            "architectures": [self.architecture.name],
            "model_type": self.architecture.model_type,
            "hidden_size": hidden,
            "num_hidden_layers": self._number("block_count"),
            "num_attention_heads": heads,
            "num_key_value_heads": self._number("attention.head_count_kv", heads),
            "head_dim": self._number("attention.key_length", hidden // heads),
            "intermediate_size": self._number("feed_forward_length"),
            **(self._experts() if self.architecture.experts else {}),
            "vocab_size": shapes["token_embd.weight"][0],
            "max_position_embeddings": self._number("context_length"),
            "rope_theta": self._real("rope.freq_base", 10000.0),
            "rms_norm_eps": self._real("attention.layer_norm_rms_epsilon", 1e-6),
            "attention_bias": "blk.0.attn_output.bias" in shapes,
            "tie_word_embeddings": "output.weight" not in shapes,
            "bos_token_id": self.metadata.get("tokenizer.ggml.bos_token_id"),
            "eos_token_id": self.metadata.get("tokenizer.ggml.eos_token_id"),
            "mask_token_id": self.metadata.get("tokenizer.ggml.mask_token_id"),
        }
        scaling = self._rope_scaling()
        return config | ({"rope_scaling": scaling} if scaling else {})

    def _experts(self) -> dict[str, Any]:
        """Write how experts are mixed; in this format every layer does, and the weights of those chosen sum to 1."""
        return {
            "num_experts": self._number("expert_count"),
            "num_experts_per_tok": self._number("expert_used_count"),
            "moe_intermediate_size": self._number("expert_feed_forward_length"),
            "norm_topk_prob": True,
        }

    def generation_config(self) -> dict[str, Any]:
        """Write the end tokens as a Hugging Face generation_config.json."""
        keys = ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id")
        ends = [self.metadata[key] for key in keys if key in self.metadata]
        return {
            "bos_token_id": self.metadata.get("tokenizer.ggml.bos_token_id"),
            "eos_token_id": sorted(set(ends)),
        }

    def weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the weights under Hugging Face names and in their row order.

        Quantised tensors become float32, which holds their values exactly; float16 and bfloat16 stay what they are.
        """
        heads = self._number("attention.head_count")
        kv_heads = self._number("attention.head_count_kv", heads)
        for stored in self._reader.tensors:
            if stored.name == names.GGUF_ROTARY:
                continue
            if _is_of_experts(stored.name):
                yield from self._each_expert(stored)
                continue
            name, module = self._published_name(stored.name)
            tensor = self._dequantise(stored)
            if self.architecture.gguf_interleaved and module in (names.QUERY, names.KEY):
                tensor = split_pairs(tensor, heads if module == names.QUERY else kv_heads)
            yield name, tensor

    def _each_expert(self, stored: gguf.ReaderTensor) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield one weight of all experts under their names."""
        _, layer, kind, _ = stored.name.split(".")
        for number, tensor in enumerate(self._dequantise(stored)):
            yield (
                f"model.layers.{layer}.{names.expert(number, names.GGUF_EXPERTS[kind])}.weight",
                tensor.clone(),
            )

    def _published_name(self, stored: str) -> tuple[str, str]:
        """Translate the name of a weight; returns it with the module it belongs to."""
        if stored in names.GGUF_TOP:
            return names.GGUF_TOP[stored], ""
        parts = stored.split(".")
        if len(parts) == 4 and parts[0] == "blk" and parts[2] in names.GGUF_MODULES:
            module = names.GGUF_MODULES[parts[2]]
            return f"model.layers.{parts[1]}.{module}.{parts[3]}", module
        raise UserError(
            f'"{self.path}": tensor "{stored}" is unknown for this architecture; use another file.'
        )

    def _dequantise(self, stored: gguf.ReaderTensor) -> torch.Tensor:
        """Turn stored blocks into numbers; the package decodes F32, F16, BF16 and all of llama.cpp's Q, IQ and TQ."""
        try:
            values = gguf.dequantize(stored.data, stored.tensor_type)
        except _BROKEN as error:
            raise UserError(
                f'"{self.path}": cannot read tensor "{stored.name}" of type {stored.tensor_type.name} ({error}); '
                "fetch it again, or another quantisation of it."
            ) from None
        shape = [int(size) for size in reversed(stored.shape)]
        tensor = torch.from_numpy(np.array(values, dtype=np.float32)).reshape(shape)
        kept = {gguf.GGMLQuantizationType.F16: torch.float16, gguf.GGMLQuantizationType.BF16: torch.bfloat16}
        return tensor.to(kept.get(stored.tensor_type, torch.float32))

    def _rope_scaling(self) -> dict[str, Any] | None:
        """Read a scaled rotary embedding, from numbers or from a tensor of divisors."""
        for stored in self._reader.tensors:
            if stored.name == names.GGUF_ROTARY:
                return {"rope_type": "factors", "factors": self._dequantise(stored).tolist()}
        place = f"{self.architecture.gguf}.rope.scaling."
        kind = self.metadata.get(f"{place}type", "none")
        if kind == "none":
            return None
        scaling = {"rope_type": kind, "factor": self._real("rope.scaling.factor", 1.0)}
        if kind != "yarn":
            return scaling
        # Knobs of llama.cpp that mean something else than config.json's.
        for key, value in self.metadata.items():
            if key.startswith(f"{place}yarn_") or (key == f"{place}attn_factor" and value != 1):
                raise UserError(f'"{self.path}": "{key}" is not supported; use the safetensors folder.')
        return scaling | {
            "original_max_position_embeddings": self._number("rope.scaling.original_context_length")
        }

    def _number(self, key: str, default: int | None = None) -> int:
        """Read a positive integer of the architecture's own keys."""
        value = self.metadata.get(f"{self.architecture.gguf}.{key}", default)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise UserError(
                f'"{self.path}": "{key}" has to be a positive integer, not {value!r}; fetch it again.'
            )
        return value

    def _real(self, key: str, default: float) -> float:
        """Read a float32 number, without the digits that float32 does not hold (1e-5, not 9.99999974e-06)."""
        value = self.metadata.get(f"{self.architecture.gguf}.{key}", default)
        return float(f"{value:.7g}") if isinstance(value, int | float) else default


def _is_of_experts(stored: str) -> bool:
    """Say whether a tensor of that name holds a weight of all experts of a layer."""
    parts = stored.split(".")
    return len(parts) == 4 and parts[0] == "blk" and parts[2] in names.GGUF_EXPERTS


def split_pairs(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """Undo the row order that GGUF gives q and k of interleaved architectures.

    There, rows 2i and 2i + 1 of a head are what one rotary angle turns; here rows i and i + head_dim / 2 are.
    """
    rows = weight.shape[0]
    paired = weight.reshape(heads, rows // heads // 2, 2, *weight.shape[1:])
    return paired.transpose(1, 2).reshape(weight.shape).contiguous()
