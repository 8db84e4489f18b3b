"""One line a message, on whatever standard error is now, unless the user has it otherwise."""

from __future__ import annotations

import contextlib
import io
import logging
import subprocess
import sys

import pytest

from tfdist.runtime.log import LOGGER


def said(program: str) -> str:
    """What a separate program writes to standard error."""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    return done.stderr


def test_lines_go_to_the_current_standard_error() -> None:
    first, second = io.StringIO(), io.StringIO()
    with contextlib.redirect_stderr(first):
        LOGGER.info("saved %d of %s", 3, "these")
    with contextlib.redirect_stderr(second):
        LOGGER.warning("then this")
    assert first.getvalue() == "tfdist: saved 3 of these\n"
    assert second.getvalue() == "tfdist: then this\n"


def test_the_level_silences_it(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    assert LOGGER is logging.getLogger("tfdist")
    assert LOGGER.level == logging.INFO
    LOGGER.debug("too fine")
    monkeypatch.setattr(LOGGER, "level", logging.INFO)  # Puts it back in the end.
    LOGGER.setLevel("WARNING")
    LOGGER.info("not now")
    LOGGER.warning("this")
    LOGGER.setLevel("INFO")
    assert capsys.readouterr() == ("", "tfdist: this\n")


@pytest.mark.parametrize(
    "root", ["logging.basicConfig()", "import absl.logging; absl.logging.use_absl_handler()"]
)
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_handler_of_the_root_logger_doubles_nothing(root: str, when: str) -> None:
    imports = "from tfdist.runtime.log import LOGGER\n"
    lines = [f"{root}\n", imports] if when == "before" else [imports, f"{root}\n"]
    program = "import logging\n" + "".join(lines) + "LOGGER.warning('once')\n"
    assert said(program) == "tfdist: once\n"


def test_a_users_own_handler_and_level_are_left_alone() -> None:
    program = """
import logging, sys
mine = logging.getLogger("tfdist")
handler = logging.StreamHandler(sys.stderr)
handler.setFormatter(logging.Formatter("mine: %(message)s"))
mine.addHandler(handler)
mine.setLevel("ERROR")
from tfdist.runtime.log import LOGGER
assert LOGGER is mine and LOGGER.handlers == [handler] and LOGGER.propagate
LOGGER.warning("not this")
LOGGER.error("this")
"""
    assert said(program) == "mine: this\n"


def test_a_level_set_before_the_import_stays() -> None:
    program = """
import logging
logging.getLogger("tfdist").setLevel("WARNING")
from tfdist.runtime.log import LOGGER
LOGGER.info("not this")
LOGGER.warning("this")
"""
    assert said(program) == "tfdist: this\n"


def test_records_reach_the_root_logger_where_the_user_wants_it() -> None:
    program = """
import logging
logging.basicConfig(format="root: %(message)s")
from tfdist.runtime.log import LOGGER
LOGGER.handlers = []
LOGGER.propagate = True
LOGGER.warning("there")
"""
    assert said(program) == "root: there\n"
