"""The DNS of a cluster: addresses of names, and "no such name" at once for all others."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time

_HEAD = struct.Struct(">HHHHHH")
_ANSWER = struct.Struct(">HHHIH4s")
_NAME_IN_QUESTION = 0xC000 | _HEAD.size
_A, _INTERNET, _ANSWERED, _NO_SUCH_NAME = 1, 1, 0x8580, 3


class Names:
    """Answers questions for addresses, in a thread.

    Attributes:
        late: Seconds after which a change is known, as there are caches on the way.
    """

    def __init__(self) -> None:
        self.late = 0.0
        self._records: dict[str, str] = {}
        self._changes: list[tuple[float, str, str | None]] = []
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def set(self, name: str, address: str | None) -> None:
        """Gives a name an address, or takes it away."""
        with self._lock:
            # What is new is known at once, what has changed is not.
            late = self.late if name in self._records else 0.0
            self._changes.append((time.monotonic() + late, name.lower(), address))

    def serve(self, asked: socket.socket) -> None:
        """Begins to answer."""
        asked.settimeout(0.2)
        self._thread = threading.Thread(target=self._run, args=(asked,), name="names")
        self._thread.start()

    def close(self) -> None:
        """Ends it."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self, asked: socket.socket) -> None:
        with asked:
            while not self._ended.is_set():
                with contextlib.suppress(TimeoutError):
                    question, caller = asked.recvfrom(512)
                    asked.sendto(self._answer(question), caller)

    def _answer(self, question: bytes) -> bytes:
        labels, at = [], _HEAD.size
        while length := question[at]:
            labels.append(question[at + 1 : at + 1 + length].decode("ascii"))
            at += length + 1
        kind = int.from_bytes(question[at + 1 : at + 3], "big")
        address = self._find(".".join(labels).lower())
        code = _ANSWERED | (_NO_SUCH_NAME if address is None else 0)
        answer = b""
        if address is not None and kind == _A:
            place = (_NAME_IN_QUESTION, _A, _INTERNET, 5, 4, socket.inet_aton(address))
            answer = _ANSWER.pack(*place)
        (number,) = struct.unpack_from(">H", question)
        head = _HEAD.pack(number, code, 1, 1 if answer else 0, 0, 0)
        return head + question[_HEAD.size : at + 5] + answer

    def _find(self, name: str) -> str | None:
        now = time.monotonic()
        with self._lock:
            due = [change for change in self._changes if change[0] <= now]
            self._changes = [change for change in self._changes if change[0] > now]
            for _, changed, address in due:
                if address is None:
                    self._records.pop(changed, None)
                else:
                    self._records[changed] = address
            return self._records.get(name)
