"""Signals are noticed while something that is not Python blocks the main thread."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from tfdist.runtime import wakeup

SCRIPT = """
import ctypes, os, signal, threading, time
from tfdist.runtime import wakeup
signal.signal(signal.SIGTERM, lambda *_: None)
blocked = threading.Event()
assert wakeup.when_blocked(blocked.set)

def watch():
    ready.wait()
    time.sleep(0.3)
    for number in (SIGNALS):
        os.kill(os.getpid(), number)
        time.sleep(0.05)
    os.write(1, b"blocked" if blocked.wait(SECONDS) else b"quiet")
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
        ("signal.SIGINT,", HELD, "blocked"),
        ("signal.SIGINT,", MOVING, "quiet"),
        ("signal.SIGINT,", "signal.signal(2, lambda *_: None)" + HELD, "quiet"),
        ("signal.SIGTERM,", HELD, "quiet"),  # A wish to save and stop after the step.
        ("signal.SIGTERM, signal.SIGTERM", HELD, "blocked"),
        ("signal.SIGUSR2,", HELD, ""),  # It has no handler, and ends the process.
    ],
)
def test_what_the_main_thread_cannot_act_on_is_noticed(signals, hold, found):
    code = SCRIPT.replace("SIGNALS", signals).replace("HOLD", hold)
    # For what must not come, a second is waited.
    code = code.replace("SECONDS", "30.0" if found == "blocked" else "1.0")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == found, done.stderr


def test_another_thread_may_not_ask_for_it():
    def ways():
        return wakeup.when_blocked(print), wakeup.on_signal(print)

    found = []
    thread = threading.Thread(target=lambda: found.extend(ways()))
    thread.start()
    thread.join()
    assert found == [False, False]


def test_a_descriptor_of_the_program_still_gets_the_numbers():
    code = (
        "import os, signal, socket; from tfdist.runtime import wakeup\n"
        "signal.signal(signal.SIGUSR1, lambda *_: None)\n"
        "a, b = socket.socketpair(); b.setblocking(False); signal.set_wakeup_fd(b.fileno())\n"
        "assert wakeup.on_signal(lambda number: None)\n"
        "os.kill(os.getpid(), signal.SIGUSR1); print(a.recv(9)[0] == signal.SIGUSR1)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"


def test_a_forked_child_has_no_descriptor():
    code = (
        "import os, signal; from tfdist.runtime import wakeup\n"
        "assert wakeup.on_signal(lambda number: None)\n"
        "child = os.fork()\n"
        "if not child: os._exit(signal.set_wakeup_fd(-1) == -1)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), signal.set_wakeup_fd(-1) >= 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "1 True\n"
