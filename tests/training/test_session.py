"""A fit continues where it was saved, is stopped by SIGTERM, and reports what it does."""

from __future__ import annotations

import os
import signal
import time

import numpy as np
import pytest


@pytest.fixture
def phases(monkeypatch):
    """The phases that heartbeats name, in order, each run of one phase once."""
    from tfdist.runtime.heartbeat import HeartbeatWriter

    seen = []
    write = HeartbeatWriter.write

    def record(self, phase, *arguments, **more):
        if not seen or seen[-1] != phase:
            seen.append(phase)
        write(self, phase, *arguments, **more)

    monkeypatch.setattr(HeartbeatWriter, "write", record)
    return seen


def test_what_compiles_is_not_taken_for_a_stall(phases):
    """The first step and the first validation compile; the launcher gives both more time."""
    import keras

    import tfdist

    strategy = tfdist.build_strategy("one_device")
    with strategy.scope():
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        model.compile(loss="mse")
    x, y = np.ones((8, 2), "float32"), np.ones((8, 1), "float32")
    trainer = tfdist.Trainer(model)
    trainer.fit(x, y, batch_size=4, epochs=2, validation_data=(x, y), verbose=0)
    first = ["building", "tracing", "training", "tracing", "evaluating"]
    assert phases == [*first, "training", "evaluating", "done"]
    del phases[:]
    trainer.evaluate(x, y, batch_size=4, verbose=0)
    assert phases == ["tracing", "evaluating"]


ROWS, STEPS = 9, 3  # Of four, four and one row.


@pytest.fixture
def linear(devices):
    """Makes equal models of one weight, on two replicas."""
    from tests.training.loops import made

    strategy = made.strategy_of("mirrored", devices)
    return lambda **options: made.linear(strategy, **options)


def fit(model, folder=None, *, callback=None, epochs=2, times=1, **options):
    """Trains, `times` calls of `fit`; returns the trainer."""
    import tfdist
    from tests.training.loops.made import X, Y

    trainer = tfdist.Trainer(model, checkpoint_dir=folder, keep_checkpoints=99, **options)
    data = {"x": X, "y": Y, "batch_size": 4, "shuffle": False, "verbose": 0}
    for _ in range(times):
        trainer.fit(**data, epochs=epochs, callbacks=[callback] if callback else None)
    return trainer


def positions(folder):
    """What each checkpoint says of where it was saved: fit, epoch, step, total, finished."""
    from tfdist.training.checkpoint.file import decode

    names = ("fit", "epoch", "step", "total", "finished")
    files = [decode(path.read_bytes()) for path in sorted(folder.glob("*.tfdist"))]
    return [tuple(file.manifest["position"][name] for name in names) for file in files]


def weight(model):
    return model.get_weights()[0].item()


def after(batches, act):
    """A callback that does something after so many batches."""
    import keras

    left = [batches]

    def count(batch, logs):
        left[0] -= 1
        if left[0] == 0:
            act()

    return keras.callbacks.LambdaCallback(on_train_batch_end=count)


def term():
    os.kill(os.getpid(), signal.SIGTERM)


def test_checkpoints_are_saved_where_they_are_due_however_many_steps_a_call_makes(linear, tmp_path):
    import keras

    ends = []
    seen = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: ends.append(batch))
    fit(linear(), tmp_path, callback=seen, checkpoint_steps=2, steps_per_call=9, times=2)
    assert ends == [1, 2, 0, 2] * 2
    # The last one of a call is replaced by that of its end, at the next epoch.
    first = [(0, 0, 2, 2, False), (0, 1, 1, 4, False), (0, 2, 0, 6, False)]
    assert positions(tmp_path) == [*first, *((1, e, s, t + 6, f) for _, e, s, t, f in first)]


def test_every_epoch_is_saved_where_nothing_else_is_asked_for(linear, tmp_path, phases):
    fit(linear(), tmp_path, epochs=3)
    assert positions(tmp_path) == [(0, n, 0, n * STEPS, False) for n in (1, 2, 3)]
    saves = ["training", "saving"]
    assert phases == ["building", "tracing", *saves * 3, "done"]


def test_a_fit_that_a_callback_stopped_is_done_when_it_is_started_again(linear, tmp_path, capsys):
    model = linear()
    fit(model, tmp_path, callback=after(4, lambda: setattr(model, "stop_training", True)), epochs=9)
    assert positions(tmp_path)[-1] == (0, 2, 0, 4, True)
    again = linear()
    trainer = fit(again, tmp_path, callback=after(1, pytest.fail), epochs=9)
    assert weight(again) == weight(model)
    assert (trainer._position.epoch, trainer._position.total) == (2, 4)
    assert "training was stopped after 2 of 9 epochs, saved in" in capsys.readouterr().err


def test_of_calls_that_were_done_only_the_weights_come_back(linear, tmp_path, capsys):
    model, counts = linear(), []
    fit(model, tmp_path, times=2)
    again = linear()
    fit(again, tmp_path, times=3, callback=after(1, lambda: counts.append(1)))
    assert counts == [1], "the third call trains"
    assert [p[0] for p in positions(tmp_path)] == [0, 0, 1, 1, 2, 2]
    assert " epochs are done in " in capsys.readouterr().err
    whole = linear()
    fit(whole, times=3)
    assert weight(again) == weight(whole)


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, marks=pytest.mark.long),
        {"checkpoint_steps": 99},
        pytest.param({"checkpoint_seconds": 1e9}, marks=pytest.mark.long),
    ],
)
def test_a_sigterm_is_obeyed_after_the_step_and_training_continues_later(linear, tmp_path, options):
    from tfdist.errors import Preempted

    with pytest.raises(Preempted, match="in epoch 2 after step 1, which is saved"):
        fit(linear(), tmp_path, callback=after(4, term), **options)
    assert positions(tmp_path)[-1] == (0, 1, 1, 4, False)
    resumed, whole = linear(), linear()
    fit(resumed, tmp_path, **options)
    fit(whole)
    assert weight(resumed) == weight(whole)


def test_a_sigterm_waits_for_the_end_of_an_update(linear, tmp_path):
    """Gradients that are added up are in no checkpoint."""
    from tfdist.errors import Preempted

    with pytest.raises(Preempted, match="in epoch 1 after step 2"):
        fit(linear(), tmp_path, callback=after(1, term), accumulate_steps=2)
    resumed, whole = linear(), linear()
    fit(resumed, tmp_path, accumulate_steps=2)
    fit(whole, accumulate_steps=2)
    assert weight(resumed) == weight(whole)


def test_a_sigterm_after_the_last_step_finds_all_saved(linear, tmp_path):
    import keras

    from tfdist.errors import Preempted

    late = keras.callbacks.LambdaCallback(on_train_end=lambda logs: term())
    with pytest.raises(Preempted, match="fit had finished, and its end is saved"):
        fit(linear(), tmp_path, callback=late)
    assert positions(tmp_path)[-1] == (0, 2, 0, 6, False)


def test_a_checkpoint_under_way_is_finished_when_an_exception_ends_training(
    linear, tmp_path, monkeypatch
):
    from tfdist.training.checkpoint import file

    finish = file.finish

    def slowly(*paths):
        time.sleep(0.5)
        finish(*paths)

    monkeypatch.setattr(file, "finish", slowly)

    def fail():
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fit(linear(), tmp_path, callback=after(3, fail), checkpoint_steps=2)
    assert positions(tmp_path) == [(0, 0, 2, 2, False)]
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_an_epoch_of_another_length_is_not_gone_on_with(linear, tmp_path):
    import tfdist
    from tests.training.loops.made import X, Y
    from tfdist.errors import ConfigError, Preempted

    with pytest.raises(Preempted):
        fit(linear(), tmp_path, callback=after(2, term))
    trainer = tfdist.Trainer(linear(), checkpoint_dir=tmp_path)
    data = {"x": np.concatenate([X, X]), "y": np.concatenate([Y, Y])}
    with pytest.raises(ConfigError, match="an epoch has 5 batches, but had 3 when the checkpoint"):
        trainer.fit(**data, batch_size=4, epochs=2, shuffle=False, verbose=0)


def test_all_workers_hear_of_a_save_in_which_they_take_part(linear, tmp_path):
    """One that is due by the clock is due on each at another moment."""
    for options, count in (({"checkpoint_steps": 2}, 3), ({"checkpoint_seconds": 1e-9}, 0)):
        import tfdist
        from tests.training.loops.made import X, Y

        trainer = tfdist.Trainer(linear(), checkpoint_dir=tmp_path / str(count), **options)
        calls = []
        trainer._consistency.check_before_save = lambda calls=calls: calls.append(1)
        trainer.fit(X, Y, batch_size=4, epochs=2, verbose=0)
        assert len(calls) == count
