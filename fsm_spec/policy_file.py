"""Policies by name and from YAML files, with every fault of a file as a finding."""

from __future__ import annotations

from importlib import resources
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ValidationError

from fsm_spec.decision import ADMISSIONS
from fsm_spec.errors import UserError
from fsm_spec.language import source
from fsm_spec.language.findings import Finding, SpecFindings, nearest, path_text, quoted
from fsm_spec.language.sentence import describe, sentence
from fsm_spec.policy import Policy, Prefill, VerifyBudget
from fsm_spec.tiers import Tier, TierStep

if TYPE_CHECKING:
    from fsm_spec.language.findings import Path


def shipped_policies() -> dict[str, FilePath]:
    """List the policy files that come with the package, by name."""
    folder = FilePath(str(resources.files("fsm_spec.specs"))) / "policies"
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}


def load_policy(name_or_path: str) -> Policy:
    """Give a policy by its admission rule or shipped name, or read it from a YAML file.

    Raises UserError for an unknown name, SpecFindings with every fault of a file.
    """
    if name_or_path in ADMISSIONS:
        return Policy.model_validate({"policy": name_or_path, "admit": name_or_path})
    path = shipped_policies().get(name_or_path.casefold(), FilePath(name_or_path))
    if not path.is_file():
        known = [*ADMISSIONS, *shipped_policies()]
        raise UserError(
            f"no policy is called {name_or_path!r} and no such file exists{nearest(name_or_path, known)}"
        )
    read = source.compose(source.read(path, str(path)), str(path), source.POLICY)
    refused = []
    try:
        policy = Policy.model_validate(read.data)
        if not read.findings:
            return policy
    except ValidationError as error:
        refused = [dict(item) for item in error.errors() if item["loc"] not in read.broken]
    faults = [*read.findings, *(_finding(item, read) for item in refused)]
    raise SpecFindings(sorted(faults, key=lambda fault: (fault.line, fault.column)))


def _finding(error: dict[str, Any], read: source.Source) -> Finding:
    """Say what is wrong with one value or key of a policy file, where, and which word was perhaps meant."""
    path: Path = error["loc"]
    line, column = read.position(path)
    if error["type"] == "extra_forbidden":
        models: dict[Path, type[BaseModel]] = {
            (): Policy,
            ("prefill",): Prefill,
            ("tier",): Tier,
            ("budget",): VerifyBudget,
        }
        model = models.get(path[:-1], TierStep)
        message = f"unknown key {quoted(path[-1])}{nearest(str(path[-1]), model.model_fields)}"
        line, column = read.keys[path]
    elif error["type"] == "missing":
        line, column = read.position(path[:-1])
        message = f"the key {quoted(path[-1])} is missing"
    elif error["type"] == "literal_error":
        value = error["input"]
        word = value if isinstance(value, str) else ""
        message = (
            f"{describe(value)} is no admission rule{nearest(word, ADMISSIONS)}"
            if path == ("admit",)
            else f"tiers go by running requests, not by {describe(value)}; write by: running, or leave it out"
        )
    else:
        message, _ = sentence(error, path, read)
    return Finding(read.file, line, column, path_text(path), message)
