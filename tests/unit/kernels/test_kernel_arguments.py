"""Integer arguments of 1 become constants when Triton compiles a launch, which the interpreter does not show."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec

import pytest


@pytest.mark.skipif(find_spec("triton") is None, reason="Triton has no package for this system")
def test_arguments_of_one_compile() -> None:
    """One row a request, one block a row, and token 1 excluded are launches like any other."""
    from fsm_spec.kernels.triton.resources import compile_for  # noqa: PLC0415 -- where Triton is installed
    from fsm_spec.kernels.triton.sampling import SPECIALISATIONS  # noqa: PLC0415

    form = SPECIALISATIONS[0]
    ones = dict.fromkeys(("rows_each", "exclude", "blocks"), 1)
    variable = [name for name in form.kernel.arg_names if name not in form.constants]
    kept = [kind for name, kind in zip(variable, form.types.split(), strict=True) if name not in ones]
    took = compile_for(replace(form, constants={**form.constants, **ones}, types=" ".join(kept)), "sm_90")
    assert (0, 0) == (took.stack, took.spills)
