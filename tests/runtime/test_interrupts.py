"""Signals are noticed while something that is not Python holds the main thread."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from tfdist.runtime.interrupts import Interrupts

SCRIPT = """
import ctypes, os, signal, threading, time
from tfdist.runtime.interrupts import Interrupts
signal.signal(signal.SIGTERM, lambda *_: None)
interrupts = Interrupts.install()

def watch():
    ready.wait()
    time.sleep(0.3)
    for number in (SIGNALS):
        os.kill(os.getpid(), number)
        time.sleep(0.05)
        interrupts.pending()
    end = time.monotonic() + SECONDS
    while time.monotonic() < end and not interrupts.pending():
        time.sleep(0.02)
    os.write(1, b"pending" if interrupts.pending() else b"quiet")
    os._exit(0)

ready = threading.Event()
threading.Thread(target=watch).start()
HOLD
"""
# A lock that is taken twice: a signal does not end the wait for it.
HELD = """
libc, mutex = ctypes.CDLL(None), (ctypes.c_char * 64)()
libc.pthread_mutex_init(mutex, None)
libc.pthread_mutex_lock(mutex)
ready.set()
while True:
    libc.pthread_mutex_lock(mutex)
"""
MOVING = """
def rest():
    time.sleep(0.01)

ready.set()
while True:
    try:
        rest()
    except KeyboardInterrupt:
        pass
"""


@pytest.mark.parametrize(
    ("signals", "hold", "found"),
    [
        ("signal.SIGINT,", HELD, "pending"),
        ("signal.SIGINT,", MOVING, "quiet"),
        ("signal.SIGINT,", "signal.signal(2, lambda *_: None)" + HELD, "quiet"),
        ("signal.SIGTERM,", HELD, "quiet"),  # A wish to save and stop after the step.
        ("signal.SIGTERM, signal.SIGTERM", HELD, "pending"),
        ("signal.SIGUSR2,", HELD, ""),  # It has no handler, and ends the process.
    ],
)
def test_what_the_main_thread_cannot_act_on_is_noticed(signals, hold, found):
    code = SCRIPT.replace("SIGNALS", signals).replace("HOLD", hold)
    # For what must not come, a second is waited.
    code = code.replace("SECONDS", "30.0" if found == "pending" else "1.0")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == found, done.stderr


def test_another_thread_may_not_ask_for_it():
    found = []
    thread = threading.Thread(target=lambda: found.append(Interrupts.install()))
    thread.start()
    thread.join()
    assert found == [None]


def test_what_somebody_else_has_set_is_left_alone():
    code = (
        "import signal, socket; from tfdist.runtime.interrupts import Interrupts\n"
        "a, b = socket.socketpair(); b.setblocking(False); signal.set_wakeup_fd(b.fileno())\n"
        "print(Interrupts.install(), signal.set_wakeup_fd(-1) == b.fileno())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "None True\n"
