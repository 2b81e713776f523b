"""Shipped hardware and models: published counts, forgiving names, sentences for wrong ones."""

import json
from pathlib import Path

import pytest

from fsm_spec.errors import UserError
from fsm_spec.simulator.curve import Curve
from fsm_spec.simulator.hardware import hardware_names, load_hardware
from fsm_spec.simulator.memory import MemoryOptions, plan_memory
from fsm_spec.simulator.model import load_model, model_names, published_parameters


@pytest.mark.parametrize("name", model_names())
def test_parameter_counts_are_the_published_ones(name: str) -> None:
    """A wrong formula would price every forward wrongly."""
    shape = load_model(name)
    assert published_parameters().get(name, shape.parameters) == shape.parameters
    assert shape.source


def test_pinned_counts() -> None:
    """The published numbers themselves, KV bytes a token and the size of a rank-128 adapter (0.35 B)."""
    counts = {name: load_model(name).parameters for name in ("llama-3.1-8b", "qwen3-8b", "smollm2-135m")}
    assert {
        "llama-3.1-8b": 8_030_261_248,
        "qwen3-8b": 8_190_735_360,
        "smollm2-135m": 134_515_008,
    } == counts
    assert load_model("llama-3.1-8b").kv_bytes() == 131_072
    assert load_model("qwen3-8b").kv_bytes("fp8") == 73_728
    assert load_model("qwen3-8b").adapter_parameters(128) == 349_175_808
    assert load_model("llama-3.1-8b").weight_bytes("bf16") == 2 * 8_030_261_248


@pytest.mark.parametrize("name", ["LLAMA_3.1_8b", "meta-llama/Llama-3.1-8B", "Llama 3.1 8B-Instruct"])
def test_model_names_are_forgiving(name: str) -> None:
    """Case, dashes, dots, the owner and the instruct suffix do not matter."""
    assert load_model(name).name == "Llama-3.1-8B"


def test_hardware_names_and_numbers() -> None:
    """Every row of the table loads, peaks are dense, and each number has a source."""
    names = ["a100", "h100", "h200", "b200", "gb200", "l40s", "rtx4090", "rtx_pro_6000", "mi300x"]
    assert names == hardware_names()
    assert load_hardware("RTX-PRO 6000").name == "rtx_pro_6000"
    assert load_hardware("l40s").fp8_tflops == 733  # the sparse figure is 1,466
    for name in names:
        hardware = load_hardware(name)
        values = {key for key, value in hardware if value is not None} - {"name", "title", "sources"}
        assert values == values & set(hardware.sources)
        hardware.efficiency()


@pytest.mark.parametrize(
    ("load", "name", "words"),
    [
        (load_hardware, "h10", 'unknown hardware "h10"; did you mean h100'),
        (load_hardware, "quantum", "choose one of a100, h100"),
        (load_model, "llama-3.2-8b", "did you mean Llama-3.1-8B"),
        (load_model, "missing/config.json", "cannot be read"),
    ],
)
def test_unknown_names_get_a_sentence(load: object, name: str, words: str) -> None:
    """The nearest right names are offered."""
    with pytest.raises(UserError, match=words):
        load(name)  # type: ignore[operator]


def test_a_config_on_disk(tmp_path: Path) -> None:
    """A folder or a file works; kv heads and head size may be left out."""
    config = {
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "vocab_size": 100,
        "attention_bias": True,
        "mlp_bias": True,
    }
    folder = tmp_path / "tiny"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    shape = load_model(str(folder))
    assert ("tiny", 4, 16) == (shape.name, shape.num_key_value_heads, shape.head_dim)
    layer = 4 * 64 * 64 + 4 * 64 + 3 * 64 * 96 + 2 * 96 + 64 + 2 * 64
    assert 2 * 100 * 64 + 2 * layer + 64 == shape.parameters
    assert load_model(str(folder / "config.json")) == shape


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "is not JSON"),
        ("[]", "is no JSON object"),
        ('{"hidden_size": 64}', "intermediate_size: field required"),
        ('{"hidden_size": "wide"}', "hidden_size: input should be a valid integer"),
        (
            '{"num_experts": 8}',
            "num_experts makes it a mixture of experts, and only those of the types mixtral",
        ),
        ('{"sliding_window": 4096}', "sliding_window 4096 is not modelled"),
    ],
)
def test_broken_configs_get_a_sentence(tmp_path: Path, text: str, words: str) -> None:
    """What cannot be priced is refused with its place."""
    path = tmp_path / "broken.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=words) as caught:
        load_model(str(path))
    assert str(path) in str(caught.value)


def test_pages_match_a_real_engine() -> None:
    """The vLLM 0.19 run on an RTX 4090 had 2,588 blocks of 16 tokens."""
    memory = plan_memory(
        load_model("llama-3.1-8b"), load_hardware("rtx4090"), options=MemoryOptions(page_size=16)
    )
    assert memory.pages == pytest.approx(2_588, rel=0.01)
    assert not memory.given


def test_pages_can_be_given_and_memory_split() -> None:
    """`--pages` is taken as it is; two accelerators hold half the weights each; fp8 KV doubles the pages."""
    model, hardware = load_model("llama-3.1-8b"), load_hardware("h100")
    given = plan_memory(model, hardware, options=MemoryOptions(pages=1024))
    assert (1024, 65_536, True) == (given.pages, given.tokens, given.given)
    one, two = (plan_memory(model, hardware, tensor_parallel=count) for count in (1, 2))
    assert two.pages > 2 * one.pages
    assert one.page_bytes == 2 * two.page_bytes
    small_kv = plan_memory(model, hardware, kv_dtype="fp8")
    assert small_kv.pages in {2 * one.pages, 2 * one.pages + 1}
    adapted = plan_memory(model, hardware, options=MemoryOptions(adapter_rank=128))
    assert adapted.pages < one.pages


def test_memory_is_divided_without_rest() -> None:
    """All parts are the accelerator; peaks grow with rows and with those that need logits, and refusals say them."""
    model, hardware = load_model("qwen3-8b"), load_hardware("h100")
    memory = plan_memory(model, hardware, options=MemoryOptions(rows=4096, logits_rows=512))
    assert hardware.hbm_bytes == sum(memory.parts.values())
    # Residual and norm of 4,096 numbers, and gate, up and product of 12,288, in 16 bits each.
    assert 2 * 4096 * (2 * 4096 + 3 * 12_288) == memory.parts["activations"]
    assert 2 * 4 * 512 * 151_936 == memory.parts["logits"]
    usual = plan_memory(model, hardware)
    assert usual.pages > memory.pages
    fused = plan_memory(model, hardware, options=MemoryOptions(adapter_rank=128, fused_adapter=True))
    assert 2 * model.gemm_parameters == fused.parts["weights with the adapter fused in"]
    assert "adapter" not in fused.parts
    with pytest.raises(
        UserError, match=r"fewer --max-running \(activations and logits of 80000 rows take 93"
    ):
        plan_memory(model, hardware, options=MemoryOptions(rows=80_000, logits_rows=76_800))


def test_what_does_not_fit_says_by_how_much() -> None:
    """Both numbers stand in the sentence."""
    with pytest.raises(UserError, match=r"needs 131\.4 GiB .* h100 leaves 70\.2 GiB"):
        plan_memory(load_model("llama-3.1-70b"), load_hardware("h100"))
    with pytest.raises(UserError, match=r"100000 pages of 64 tokens needs 796\.2 GiB"):
        plan_memory(load_model("llama-3.1-8b"), load_hardware("h100"), options=MemoryOptions(pages=100_000))


@pytest.mark.parametrize(
    "options",
    [{"page_size": 0}, {"utilisation": 1.5}, {"pages": 0}, {"reserve_gib": -1.0}, {"adapter_rank": -1}],
)
def test_bad_memory_options_get_a_sentence(options: dict[str, float]) -> None:
    """Impossible options are refused."""
    with pytest.raises(UserError):
        MemoryOptions(**options)  # type: ignore[arg-type]


def test_curves_interpolate_and_never_slow_down() -> None:
    """Between points a power law; rises that make more work faster are cut, as is all above 1."""
    curve = Curve.of([(1, 0.2), (100, 0.8)])
    assert curve.share(10) == pytest.approx(0.4)
    assert (0.2, 0.8) == (curve.share(0.1), curve.share(1e9))
    assert Curve.of([(1, 0.1), (2, 0.9), (3, 1.4)]).shares == pytest.approx((0.1, 0.2, 0.3))
    assert Curve.of([(1, 0.5), (4, 1.4)]).shares == (0.5, 1.0)
    assert Curve.of([(1, 0.7), (2, 0.9), (3, 0.6)]).falling().shares == (0.7, 0.7, 0.6)
    assert Curve.of([(10, 0.5)], below="latency").share(1) == pytest.approx(0.05)
    for points in ([], [(2, 0.5), (1, 0.5)], [(0, 0.5)], [(1, 0.0)]):
        with pytest.raises(ValueError, match="ascending"):
            Curve.of(points)
