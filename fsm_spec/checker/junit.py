"""JUnit XML of checks: a test suite a spec, a test case a property, for the pages of a CI service."""

from __future__ import annotations

from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

from fsm_spec.checker import check

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fsm_spec.checker.check import Checked
    from fsm_spec.checker.verdict import Answer


def junit(answers: Sequence[Answer]) -> str:
    """Write the answers: a refuted property failed, an undetermined one was skipped, a faulty file is an error."""
    root = ET.Element("testsuites", name="fsm-spec check")
    for answer in answers:
        suite = ET.SubElement(root, "testsuite", name=answer.found.file if answer.found else answer.name)
        if answer.result:
            _cases(suite, answer.result)
        else:
            case = ET.SubElement(suite, "testcase", classname=answer.name, name="the file is well formed")
            ET.SubElement(case, "error", message="faulty").text = _clean(str(answer.error))
        for kind, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
            suite.set(kind, str(len(suite.findall(f"testcase/{tag}"))))
        suite.set("tests", str(len(suite.findall("testcase"))))
    ET.indent(root)
    return ET.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _cases(suite: ET.Element, result: Checked) -> None:
    suite.set("time", f"{result.seconds:.6f}")
    for decided in result.properties:
        case = ET.SubElement(suite, "testcase", classname=result.table.name, name=decided.name)
        if decided.verdict == check.REFUTED:
            example = decided.counterexample
            failure = ET.SubElement(case, "failure", message=example.why if example else "it never happens")
            failure.text = _clean("\n".join(example.lines()) if example else "")
        elif decided.verdict == check.UNDETERMINED:
            ET.SubElement(case, "skipped", message="undetermined within the bounds")


def _clean(text: str) -> str:
    """Leave out control characters, which XML cannot hold."""
    return "".join(character for character in text if character >= " " or character in "\n\t")
