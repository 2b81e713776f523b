"""The one table of names that published model files use, and what each name means structurally.

All else in the project speaks of structure: whether queries and keys are normalised, which projections carry a bias.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Architecture:
    """Say how a published decoder architecture differs from the plain one (RMSNorm, RoPE, GQA, SwiGLU)."""

    name: str
    """`architectures[0]` of config.json"""
    model_type: str
    """`model_type` of config.json"""
    gguf: str | None = None
    """`general.architecture` of a GGUF file; None where no such file is read"""
    qk_norm: bool = False
    """RMSNorm over each head of queries and keys before the rotary embedding"""
    qkv_bias: bool = False
    """bias on q, k and v whatever `attention_bias` says"""
    gguf_interleaved: bool = False
    """GGUF stores the rows of q and k in pairs (i, i + 1) instead of halves (i, i + head_dim / 2)"""
    experts: bool = False
    """some feed-forward layers are mixtures of experts"""
    body: str = "model."
    """what the files call everything but the head"""
    head: str = "lm_head."
    """what the files call the language model head"""

    def called(self, name: str) -> str:
        """Give the name that this architecture's files have for one of the names below."""
        for plain, own in (("model.", self.body), ("lm_head.", self.head)):
            if name.startswith(plain):
                return own + name.removeprefix(plain)
        return name


_TABLE = (
    Architecture("LlamaForCausalLM", "llama", "llama", gguf_interleaved=True),
    Architecture("MistralForCausalLM", "mistral", "llama", gguf_interleaved=True),
    Architecture("Qwen2ForCausalLM", "qwen2", "qwen2", qkv_bias=True),
    Architecture("Qwen3ForCausalLM", "qwen3", "qwen3", qk_norm=True),
    Architecture("Qwen3MoeForCausalLM", "qwen3_moe", "qwen3moe", qk_norm=True, experts=True),
    # Ministral 3: Mistral's layers under YaRN, with queries that grow beyond the original context.
    Architecture("Ministral3ForCausalLM", "ministral3"),
    # Qwen3's layers, trained by block diffusion (github.com/JetAstra/SDAR, `modeling_sdar.py`) or, by I-DLM, on masks
    # under causal attention (github.com/thuEcstasy/I-DLM, `training/model/*/config.json`).
    Architecture("SDARForCausalLM", "sdar", qk_norm=True),
    Architecture("SDARMoeForCausalLM", "sdar_moe", qk_norm=True, experts=True),
    # Ministral 3's layers under other names (sgl-project/sglang and mlx-lm, models of that name).
    Architecture(
        "NemotronLabsDiffusionModel", "nemotron_labs_diffusion", body="encoder.", head="diffusion_head."
    ),
    # Qwen2's layers; `token_heads.py` reads the module beside them.
    Architecture("MiMoForCausalLM", "mimo", "qwen2", qkv_bias=True),
)

BY_NAME = {row.name: row for row in _TABLE}
BY_MODEL_TYPE = {row.model_type: row for row in _TABLE}
# The first row of a GGUF name stands for it: all rows of one name share its structure.
BY_GGUF = {row.gguf: row for row in reversed(_TABLE) if row.gguf is not None}

# The draft architecture whose config.json says which heads stand on the draft logits (DSpark's).
SEQUENTIAL_DRAFTER = "Qwen3DSparkModel"

# Names of weights, after `model.layers.N.`.
ATTENTION_NORM = "input_layernorm.weight"
FFN_NORM = "post_attention_layernorm.weight"
QUERY_NORM = "self_attn.q_norm.weight"
KEY_NORM = "self_attn.k_norm.weight"
QUERY, KEY, VALUE, OUTPUT = (f"self_attn.{name}_proj" for name in "qkvo")
GATE, UP, DOWN = (f"mlp.{name}_proj" for name in ("gate", "up", "down"))
ROUTER = "mlp.gate.weight"
EMBEDDING = "model.embed_tokens.weight"
FINAL_NORM = "model.norm.weight"
HEAD = "lm_head.weight"


def expert(number: int, module: str) -> str:
    """Name a module of one expert, as GATE, UP and DOWN name those of a dense layer."""
    return f"mlp.experts.{number}.{module.removeprefix('mlp.')}"


# GGUF names of weights, after `blk.N.`; a module's `.weight` and `.bias` follow it.
GGUF_MODULES = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_q": QUERY,
    "attn_k": KEY,
    "attn_v": VALUE,
    "attn_output": OUTPUT,
    "ffn_gate": GATE,
    "ffn_up": UP,
    "ffn_down": DOWN,
    "ffn_gate_inp": ROUTER.removesuffix(".weight"),
}
# Weights of all experts of a layer, [experts, outputs, inputs].
GGUF_EXPERTS = {"ffn_gate_exps": GATE, "ffn_up_exps": UP, "ffn_down_exps": DOWN}
GGUF_TOP = {"token_embd.weight": EMBEDDING, "output_norm.weight": FINAL_NORM, "output.weight": HEAD}
# Not weights: the divisors of the rotary frequencies, which config.json says in numbers.
GGUF_ROTARY = "rope_freqs.weight"
