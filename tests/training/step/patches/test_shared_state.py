"""The Python state of a model that replicas share is brought back as it was."""

from __future__ import annotations

import collections


def test_state_is_brought_back():
    import keras

    from tfdist.training.step.patches.shared_state import SharedState

    class Notes:
        def __init__(self):
            self.value = 1

    class Keeper(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(1)
            self.nested = {"lists": [[1], [2]], "set": {3}}
            self.queue = collections.deque([4])
            self.notes = Notes()

        def call(self, x):
            return self.dense(x)

    model = Keeper()
    restore = SharedState(model).keep()
    model.nested["lists"][1].append(5)
    model.nested["more"] = 6
    model.nested["set"].add(7)
    model.queue.append(8)
    model.notes.value = 9
    model.dense.kept = 10
    model.late = 11
    restore()
    assert {k: v for k, v in model.nested.items() if k != "set"} == {"lists": [[1], [2]]}
    assert set(model.nested["set"]) == {3}
    assert list(model.queue) == [4]
    assert model.notes.value == 1
    assert not hasattr(model, "late")
    assert not hasattr(model.dense, "kept")
    model.nested["lists"].append([12])  # the containers still work
    assert len(model.nested["lists"]) == 3
