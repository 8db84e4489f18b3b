"""What a user's step sums over rows, where Keras' own would average: it adds up over slices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class RowSums(NamedTuple):
    """The quantities of a model's own step that are sums over the rows of a batch.

    Attributes:
        loss: Whether what `compute_loss` returns is one; of a model's own `train_step`, the
            gradient.
        added: The numbers of the values given to `add_loss` that are, in the order of a call.
        logs: The names of the numbers among a step's logs that are, and of the means of which a
            batch is given one such number.
    """

    loss: bool = False
    added: tuple[int, ...] = ()
    logs: tuple[str, ...] = ()

    def code(self, logs: Sequence[str]) -> int:
        """Returns it as a number, for other workers.

        Args:
            logs: The names of all logs, in an order that is the same on every worker.
        """
        bits = [self.loss, *(name in self.logs for name in logs)]
        code = sum(1 << at for at, bit in enumerate(bits) if bit)
        return code + sum(1 << (len(bits) + number) for number in self.added)

    @classmethod
    def of_code(cls, code: int, logs: Sequence[str]) -> RowSums:
        """Returns what a number stands for; arguments as for `code`."""
        own = len(logs) + 1
        return cls(
            bool(code & 1),
            tuple(n for n in range(code.bit_length() - own) if code >> (own + n) & 1),
            tuple(name for at, name in enumerate(logs, 1) if code >> at & 1),
        )


NO_SUMS = RowSums()
