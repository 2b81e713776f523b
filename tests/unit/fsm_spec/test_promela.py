"""The export to Promela, read as text and as numbers; that Spin counts the same is in conformance/test_spin.py."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsm_spec import decision
from fsm_spec.cli import application
from fsm_spec.command import export
from fsm_spec.compile import compile_table
from fsm_spec.errors import UserError
from fsm_spec.language.expression import TRUE, evaluate, names, parse
from fsm_spec.load import load
from fsm_spec.promela.scheduler import Translation, macro_of
from fsm_spec.promela.steps import Steps
from fsm_spec.promela.text import FALSE, comment, text_of, tidy

MODEL = "tests/models/kvpool.yaml"


def run_c(text: str) -> int:
    """Read Promela's arithmetic: `(a -> b : c)` and macros are rewritten to Python by hand."""
    functions = {
        "MIN": min,
        "MAX": max,
        "FLOOR": lambda a, b: a // b if a >= 0 else -((b - 1 - a) // b),
        "CEIL": lambda a, b: (a + b - 1) // b if a > 0 else -((-a) // b),
        "MOD": lambda a, b: (a % b + b) % b,
    }
    python = text.replace("&&", " and ").replace("||", " or ").replace("!=", "<>").replace("!", " not ")
    return int(eval(python.replace("<>", "!="), functions))  # noqa: S307 - texts of this test only


@given(st.integers(-9, 9), st.integers(0, 9))
@pytest.mark.parametrize(
    "text",
    ["ceil(a - b, 3)", "(a - b) // 4", "a % 3", "min(a, b, 2) * -2", "max(a, 1) - (a - b)"],
)
def test_arithmetic(text: str, a: int, b: int) -> None:
    """Floors, ceilings and remainders would be wrong below zero, where C rounds towards it."""
    expr = parse(text)
    expected = evaluate(expr, {"a": a, "b": b})
    assert expected == run_c(text_of(expr, {"a": f"({a})", "b": f"({b})"}))


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("true and a > 1", "a > 1"),
        ("a > 1 or false", "a > 1"),
        ("false or a > 1", "a > 1"),
        ("a > 1 and not true", "false"),
        ("a > 1 or not false", "true"),
        ("not (a > 1 or false)", "not a > 1"),
        ("a > 1 or a < 0", "a > 1 or a < 0"),
        ("false or false", "false"),
    ],
)
def test_tidy(text: str, left: str) -> None:
    """Known parts of conditions would be printed into every option of a model."""
    assert parse(left, "bool") == tidy(parse(text, "bool"))


def test_comments_cannot_end_early() -> None:
    """A sentence of a spec that holds the end of a comment would become code of the model."""
    assert comment("a */ b\n/* c") == "/* a * / b / * c */"


def steps_of(**params: int) -> Steps:
    """Read the steps of the common model."""
    loaded = load(MODEL)
    return Steps(compile_table(loaded.spec, params, check=True, page_size=2))


def test_steps_of_the_common_model() -> None:
    """A step would be missing, or stand twice, and Spin would count other transitions."""
    steps = steps_of()
    found = {
        (state.name, event.name): [dict(step.args) for step in steps.steps(state.name, event)]
        for state in steps.table.states
        for event in steps.events(state.name)
    }
    assert found == {
        ("wait", "admit"): [{}],
        ("wait", "abort"): [{}],
        ("draft", "propose"): [{}],
        ("draft", "preempt"): [{}],
        ("draft", "abort"): [{}],
        ("verify", "accept"): [{"a": 0}, {"a": 1}, {"a": 2}],
        ("trim", "commit"): [{}, {}],
    }


def test_step_of_a_table_with_a_gap() -> None:
    """An event that no row takes would go unseen in the exported model."""
    steps = steps_of()
    table = steps.table
    row = next(row for row in table.rows if row.event == "commit" and row.target == "end")
    faulty = Steps(table.with_row(row.index, guard=parse("com + acc > 4", "bool")))
    (condition,) = faulty.unhandled("trim", faulty.table.events["commit"])
    assert set(names(condition)) == {"com", "acc"}
    assert evaluate(condition, {"com": 2, "acc": 1})
    assert not evaluate(condition, {"com": 0, "acc": 0})
    assert not steps.unhandled("trim", table.events["commit"])


def test_exactly_one_of_many_values() -> None:
    """Where there are too many values to walk, the model must check the guards itself."""
    steps = steps_of(l=64, b=8)
    steps.bounds = dict.fromkeys(steps.bounds, (0, 1 << 20))
    assert not steps.exactly_one(TRUE, [parse("com >= 0", "bool")])
    assert steps.possible(parse("com < 0", "bool"))
    assert not steps.possible(FALSE)


def test_no_line_is_about_one_model() -> None:
    """The writer would know the common model and not the language."""
    for path in Path("fsm_spec/promela").glob("*.py"):
        text = path.read_text(encoding="utf-8")
        assert not any(word in text for word in ("kvpool", "propose", "verify", "trim", "com_of", "acc_of"))


def test_admission_rule() -> None:
    """The rule of admission in the model would be another one than the scheduler's."""
    macro = macro_of(decision.admits)
    assert macro == (
        "#define ADMITS(admission, live, used, take, promised, grow, pool_pages) ((admission == 0) -> "
        "(promised <= pool_pages) : (((used + take) + (((admission == 1) && (live > 0)) -> grow : 0)) <= pool_pages))"
    )


def test_scheduler_is_translated_whole() -> None:
    """A statement of the scheduler would be lost, or a loop left open."""
    translation = Translation(
        decision.decide, "d_", {"need": "lives", "queue": "waits"}, {"queue": ("take", "longest", "fill")}
    )
    lines = [line.strip() for line in translation.statements()]
    count = {word: sum(line.startswith(word) for line in lines) for word in ("do ::", "od;", "if ::", "fi;")}
    assert count["do ::"] == count["od;"] > 0
    assert count["if ::"] == count["fi;"] > 0
    assert lines[0] == "d_live = lives;"
    assert lines[-1] == "d_result = d_admitted;"
    assert "d_youngest" in translation.variables


def test_export_of_an_abstract_model(tmp_path: Path) -> None:
    """The bounds given on the command line would not be those of the model."""
    output = tmp_path / "model.pml"
    given_bounds = {"requests": 2, "pages": 6, "page_size": 2, "policies": ("greedy",), "abort": False}
    export(MODEL, "promela", {"b": 1}, given_bounds, output)
    text = output.read_text(encoding="utf-8")
    assert "#define K 6\n" in text
    assert "#define POLICY 3\n" in text
    assert "#define ABORT 0\n" in text
    assert "active [2] proctype Request()" in text
    assert "verify -accept(a = 1)-> trim, line 23" in text
    assert "accept(a = 2)" not in text


def test_export_of_a_spec_with_forwards(tmp_path: Path) -> None:
    """A spec with forwards would be exported without its scheduler, or not at all."""
    output = tmp_path / "model.pml"
    export("ar", "promela", {}, {"requests": 2, "chunks": True}, output)
    text = output.read_text(encoding="utf-8")
    assert "active proctype Scheduler()" in text
    assert "/* decision.decide */" in text
    assert "#define ABORT 1\n" in text


@pytest.mark.parametrize(("form", "start"), [("dot", "digraph ar {"), ("mermaid", "stateDiagram-v2")])
def test_export_of_diagrams(form: str, start: str, tmp_path: Path) -> None:
    """The diagrams of `show` would be missing among the exports."""
    output = tmp_path / "diagram"
    export("ar", form, {}, {}, output)
    assert output.read_text(encoding="utf-8").startswith(start)


def test_bounds_belong_to_promela(capsys: pytest.CaptureFixture[str]) -> None:
    """Options that do nothing would be taken in silence."""
    with pytest.raises(SystemExit) as stopped:
        application([])(["export", "ar", "--policy", "greedy"])
    assert stopped.value.code == 2
    assert "--policy is about requests in a pool; --format json has none" in capsys.readouterr().err
    with pytest.raises(UserError, match="--page-size is about requests"):
        export("ar", "dot", {}, {"page_size": 4}, None)
