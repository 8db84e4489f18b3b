"""A first SIGTERM is recorded, a second one ends the process, and both only in the block."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading

import pytest

from tfdist.runtime.sigterm import Sigterm, end_on_it

NOTICE = "tfdist: SIGTERM: stopping after the next step; repeat it to end at once\n"


def ended(program: str) -> subprocess.CompletedProcess[str]:
    start = "import os, signal\nfrom tfdist.runtime.sigterm import Sigterm, end_on_it\n"
    start += "def term(): os.kill(os.getpid(), signal.SIGTERM)\n"
    return subprocess.run(
        [sys.executable, "-u", "-c", start + program], capture_output=True, text=True, timeout=60
    )


def test_the_first_is_recorded_and_the_second_ends_the_process() -> None:
    done = ended(
        "with Sigterm() as sigterm:\n"
        "    assert not sigterm.came\n"
        "    term()\n"
        "    print('came' if sigterm.came else 'lost')\n"
        "    term()\n"
        "    print('still there')\n"
    )
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGTERM, "came\n", NOTICE)


def test_it_may_come_again_in_another_training() -> None:
    done = ended(
        "for _ in range(2):\n"
        "    try:\n"
        "        with Sigterm() as sigterm:\n"
        "            term()\n"
        "            raise InterruptedError  # As training does, which has saved.\n"
        "    except InterruptedError:\n"
        "        print(sigterm.came)\n"
        "term()\n"
    )
    assert (done.returncode, done.stdout) == (-signal.SIGTERM, "True\nTrue\n")
    assert done.stderr == 2 * NOTICE


def test_one_that_nobody_handles_is_sent_again() -> None:
    done = ended("with Sigterm():\n    term()\nprint('still there')\n")
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGTERM, "", NOTICE)


@pytest.mark.parametrize("before", [signal.SIG_DFL, signal.SIG_IGN, lambda *_: None])
def test_the_earlier_handler_is_restored(before: object) -> None:
    kept = signal.signal(signal.SIGTERM, before)  # type: ignore[arg-type]
    try:
        with pytest.raises(ValueError), Sigterm():
            assert signal.getsignal(signal.SIGTERM) not in (before, kept)
            raise ValueError
        assert signal.getsignal(signal.SIGTERM) == before
    finally:
        signal.signal(signal.SIGTERM, kept)


def test_in_another_thread_it_does_nothing() -> None:
    handler = signal.getsignal(signal.SIGTERM)
    seen = []

    def run() -> None:
        with Sigterm() as sigterm:
            seen.append((sigterm.came, signal.getsignal(signal.SIGTERM)))
        end_on_it()

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert seen == [(False, handler)]
    assert signal.getsignal(signal.SIGTERM) == handler


def test_a_signal_that_other_code_took_away_ends_the_process_again() -> None:
    """As TensorFlow does: in C, so that Python still believes in its own handler."""
    takes_away = "import ctypes\nctypes.CDLL(None).signal(signal.SIGTERM, ctypes.c_void_p(1))\n"
    done = ended(f"{takes_away}term()\nprint('ignored')\nend_on_it()\nterm()\n")
    assert (done.returncode, done.stdout) == (-signal.SIGTERM, "ignored\n")
    handler = "signal.signal(signal.SIGTERM, lambda *_: print('own'))\n"
    done = ended(f"{handler}{takes_away}end_on_it()\nterm()\n")
    assert (done.returncode, done.stdout) == (0, "own\n")
