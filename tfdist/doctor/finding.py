"""The findings of an examination, one line for each check."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tfdist.errors import EXIT_CONFIG, EXIT_DONE, EXIT_PEER_LOST, TfdistError

OK, WARNING, FAILED = "ok", "warning", "FAILED"


@dataclass(frozen=True)
class Finding:
    """The result of one check.

    Attributes:
        check: The name of the check, a word or two.
        state: `OK`, `WARNING` or `FAILED`.
        text: The result, and what to do.
        exit_code: The code of a process that ends because of it.
    """

    check: str
    state: str
    text: str
    exit_code: int = EXIT_DONE

    def __str__(self) -> str:
        return f"{self.state:8} {self.check:12} {self.text}"


class Findings:
    """All findings of one task.

    Args:
        report: Receives each finding at once.

    Attributes:
        task: The task, as `worker/0`; "" where that is not known.
    """

    def __init__(self, report: Callable[[Finding], None]) -> None:
        self.task = ""
        self.all: list[Finding] = []
        self._report = report

    def add(self, check: str, text: str, *, state: str = OK, exit_code: int = EXIT_DONE) -> None:
        """Adds a finding and reports it."""
        finding = Finding(check, state, text, exit_code)
        self.all.append(finding)
        self._report(finding)

    def fail(self, check: str, error: Exception) -> None:
        """Adds a finding for the error that made a check fail."""
        code = error.exit_code if isinstance(error, TfdistError) else EXIT_CONFIG
        text = " ".join(str(error).split()) or type(error).__name__
        self.add(check, text, state=FAILED, exit_code=code)

    @property
    def exit_code(self) -> int:
        """2 where something has failed, 138 where only a start with all tasks can help."""
        codes = {finding.exit_code for finding in self.all if finding.state == FAILED}
        if not codes:
            return EXIT_DONE
        return EXIT_PEER_LOST if codes == {EXIT_PEER_LOST} else EXIT_CONFIG
