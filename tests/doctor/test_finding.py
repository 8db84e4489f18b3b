"""Lines and exit codes of what an examination finds."""

from __future__ import annotations

import pytest

from tfdist.doctor.finding import FAILED, WARNING, Finding, Findings
from tfdist.errors import CheckpointError, ConfigError, PeerError

LOST, WRONG = PeerError("worker/1 is not there"), ConfigError("the port is taken")


def test_a_finding_is_one_line() -> None:
    assert str(Finding("own port", FAILED, "2222 is taken")) == (
        "FAILED   own port     2222 is taken"
    )


@pytest.mark.parametrize(
    ("errors", "code"),
    [([], 0), ([LOST], 138), ([WRONG], 2), ([LOST, WRONG], 2), ([CheckpointError("full")], 2)],
)
def test_the_exit_code_says_whether_starting_again_can_help(
    errors: list[Exception], code: int
) -> None:
    said: list[Finding] = []
    findings = Findings(said.append)
    findings.add("cluster", "two tasks")
    findings.add("clocks", "an hour apart", state=WARNING)
    for error in errors:
        findings.fail("some check", error)
    assert findings.exit_code == code
    assert said == findings.all and len(said) == 2 + len(errors)


def test_what_failed_is_one_line_too() -> None:
    findings = Findings(lambda finding: None)
    findings.fail("step", ValueError("first\n  second"))
    findings.fail("step", KeyError())
    assert [finding.text for finding in findings.all] == ["first second", "KeyError"]
