"""A run that was broken off and resumed equals one that nobody disturbed, bit for bit."""

import hashlib
import os
import shutil
import signal
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tests import forked
from tfdist.errors import CheckpointError, ConfigError, Preempted
from tfdist.training.checkpoint import directory as checkpoint_dir
from tfdist.training.checkpoint.file import begin, finish, open_checkpoint

ROWS, BATCH, EPOCHS = 50, 8, 3  # 7 steps an epoch, the last one ragged


def checkpoints_in(folder):
    """The names of its files, without that of its lock."""
    return [path.name for path in folder.glob("checkpoint-*")]


GENERATOR = np.random.default_rng(0)
X = GENERATOR.normal(size=(ROWS, 6)).astype("float32")
Y = GENERATOR.integers(0, 3, ROWS)


class Broken(Exception):
    """Stands for whatever ends a process."""


class Break(keras.callbacks.Callback):
    """Ends training after so many steps; `act` is what happens then."""

    def __init__(self, step, act=None):
        super().__init__()
        self.left = step
        self.act = act

    def on_train_batch_end(self, batch, logs=None):
        self.left -= 1
        if self.left == 0:
            if self.act is None:
                raise Broken
            self.act()


def strategy_of(name, devices):
    if name == "one_device":
        return tfdist.one_device_strategy(devices[0])
    if name == "mirrored":
        return tfdist.mirrored_strategy(devices[:2])
    return tfdist.central_storage_strategy(devices[:2])


def make_model(strategy, units=5, optimizer=None):
    """Everything that a checkpoint must hold: statistics, seeds, averages, a loss scale."""
    keras.utils.set_random_seed(1)
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input((6,)),
                keras.layers.Dense(units, activation="relu"),
                keras.layers.BatchNormalization(),
                keras.layers.Dropout(0.3),
                keras.layers.Dense(3),
            ]
        )
        adam = keras.optimizers.Adam(0.01, use_ema=True, ema_overwrite_frequency=4)
        scaled = keras.optimizers.LossScaleOptimizer(adam, initial_scale=8.0)
        model.compile(
            optimizer() if optimizer else scaled,
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )
    return model


def values(model):
    return [np.asarray(v.numpy()) for v in (*model.variables, *model.optimizer.variables)]


def digest(model):
    return hashlib.sha256(b"".join(value.tobytes() for value in values(model))).hexdigest()


def data_of(kind):
    dataset = tf.data.Dataset.from_tensor_slices((X, Y))
    if kind == "arrays":
        return {"x": X, "y": Y, "batch_size": BATCH}
    if kind == "dataset":
        return {"x": dataset.batch(BATCH)}
    if kind == "reshuffled":
        return {"x": dataset.shuffle(ROWS, seed=3).batch(BATCH)}
    if kind == "unknown length":
        return {"x": dataset.filter(lambda x, y: y >= 0).shuffle(ROWS, seed=3).batch(BATCH)}
    if kind == "steps_per_epoch":
        data = dataset.shuffle(ROWS, seed=3).repeat().batch(BATCH)
        return {"x": data, "steps_per_epoch": 7}
    if kind == "epoch function":
        return {"x": lambda context, epoch: dataset.shuffle(ROWS, seed=epoch).batch(BATCH)}

    class Reordered(keras.utils.PyDataset):
        def __init__(self):
            super().__init__()
            self.turn = 0

        num_batches = 7

        def __getitem__(self, index):
            rows = np.roll(np.arange(ROWS), self.turn)[index * BATCH : (index + 1) * BATCH]
            return X[rows], Y[rows]

        def on_epoch_end(self):
            self.turn += 5

    return {"x": Reordered()}


def train(strategy, folder, kind="arrays", *, broken=(), epochs=EPOCHS, fit=None, **options):
    """Trains to the end, starting again after each break; returns model and history."""
    options = {"checkpoint_dir": folder, "checkpoint_steps": 2} | options
    for step in (*broken, None):
        model = make_model(strategy)
        trainer = tfdist.Trainer(model, **options)
        callbacks = [] if step is None else [Break(step)]
        try:
            history = trainer.fit(
                **data_of(kind),
                epochs=epochs,
                verbose=0,
                callbacks=callbacks,
                validation_data=(X, Y),
                **(fit or {}),
            )
        except Broken:
            continue
        assert step is None
        return model, history
    raise AssertionError


@pytest.fixture(scope="module")
def undisturbed(devices, tmp_path_factory):
    """The end of an undisturbed run, by its arguments; made once."""
    runs = {}

    def get(name, kind="arrays", **options):
        key = (name, kind, *sorted(options.items()))
        if key not in runs:
            folder = tmp_path_factory.mktemp("undisturbed")
            model, history = train(strategy_of(name, devices), folder, kind, **options)
            runs[key] = digest(model), history.history
        return runs[key]

    return get


CASES = [
    ("one_device", "arrays", {}),
    *(
        pytest.param(*case, marks=pytest.mark.long)
        for case in (
            ("mirrored", "reshuffled", {}),
            ("mirrored", "reshuffled", {"accumulate_steps": 2, "steps_per_call": 3}),
            ("one_device", "steps_per_epoch", {}),
            ("one_device", "unknown length", {}),
            ("one_device", "dataset", {"steps_per_call": 3}),
            ("one_device", "reshuffled", {"accumulate_steps": 2}),
            ("one_device", "epoch function", {}),
            ("one_device", "py dataset", {}),
            ("central_storage", "arrays", {}),
        )
    ),
]


@pytest.mark.parametrize(("name", "kind", "options"), CASES, ids=str)
def test_resume_is_exact(name, kind, options, devices, undisturbed, tmp_path):
    """Broken off in mid-epoch, and again just behind the end of one."""
    want, history = undisturbed(name, kind, **options)
    strategy = strategy_of(name, devices)
    model, resumed = train(strategy, tmp_path, kind, broken=(5, 6), **options)
    assert digest(model) == want
    assert resumed.epoch[-1] == EPOCHS - 1
    assert resumed.history == history


@pytest.mark.long
def test_without_the_saved_statistics_the_test_above_would_fail(devices, undisturbed, tmp_path):
    """What a checkpoint holds does matter: each part, left out, changes the end."""
    want, _ = undisturbed("one_device")
    strategy = strategy_of("one_device", devices)
    real = checkpoint_dir.CheckpointDirectory.add
    for part in ("moving_mean", "seed_generator", "velocity"):
        folder = tmp_path / part

        def forgetful(self, number, manifest, arrays, part=part):
            for kind in ("model", "optimizer"):
                for index, (path, *_) in enumerate(manifest[kind]):
                    if part in path:
                        key = f"{kind}/{index}"
                        arrays[key] = np.ones(arrays[key].shape, arrays[key].dtype)
            real(self, number, manifest, arrays)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(checkpoint_dir.CheckpointDirectory, "add", forgetful)
            model, _ = train(strategy, folder, broken=(5,))
        assert digest(model) != want, part


@pytest.mark.long
def test_all_optimizers_of_a_step_with_several_are_saved(devices, tmp_path):
    from tests.training.conformance.models import Adversarial

    def run(folder, batch=BATCH, **more):
        keras.utils.set_random_seed(1)
        with strategy_of("mirrored", devices).scope():
            model = Adversarial()
            optimizers = keras.optimizers.Adam(0.02), keras.optimizers.SGD(0.3, momentum=0.9)
            model.compile(*optimizers, keras.losses.SparseCategoricalCrossentropy(True))
        data = tf.data.Dataset.from_tensor_slices((X, X[:, :3])).batch(batch)
        tfdist.Trainer(model, checkpoint_dir=folder, checkpoint_steps=2).fit(
            data, epochs=2, verbose=0, **more
        )
        values = [v.numpy() for part in (model, *optimizers) for v in part.variables]
        return values, [int(optimizer.iterations.numpy()) for optimizer in optimizers]

    want, counts = run(tmp_path / "undisturbed")
    assert counts == [14, 14]
    with pytest.raises(Broken):
        run(tmp_path / "broken", callbacks=[Break(9)])
    shutil.copytree(tmp_path / "broken", tmp_path / "larger batch")
    for got, value in zip(run(tmp_path / "broken")[0], want, strict=True):
        np.testing.assert_array_equal(got, value)
    # The eight steps saved count as four of twice the batch; the second epoch makes four more.
    _, counts = run(tmp_path / "larger batch", batch=2 * BATCH)
    assert counts == [8, 8]


def test_saving_changes_nothing(devices, undisturbed):
    strategy = strategy_of("one_device", devices)
    model = make_model(strategy)
    tfdist.Trainer(model).fit(
        X, Y, batch_size=BATCH, epochs=EPOCHS, verbose=0, validation_data=(X, Y)
    )
    assert digest(model) == undisturbed("one_device")[0]


def test_kill_9_and_resume(devices, undisturbed, tmp_path, capsys):
    """A separate process, killed by the kernel in mid-epoch."""
    program = (
        "import os, signal, sys\n"
        "sys.path[:0] = sys.argv[2:3]\n"
        "import tests.training.checkpoint.test_manager as t, tfdist\n"
        "devices = tfdist.virtual_devices(4)\n"
        "kill = t.Break(9, lambda: os.kill(os.getpid(), signal.SIGKILL))\n"
        "model = t.make_model(t.strategy_of('one_device', devices))\n"
        "trainer = tfdist.Trainer(model, checkpoint_dir=sys.argv[1], checkpoint_steps=2)\n"
        "trainer.fit(t.X, t.Y, batch_size=t.BATCH, epochs=t.EPOCHS, verbose=0, callbacks=[kill])\n"
    )
    root = str(tfdist.__path__[0]).rpartition("/")[0]
    result = forked.run(
        [sys.executable, "-c", program, str(tmp_path), root], capture_output=True, timeout=300
    )
    assert result.returncode == -signal.SIGKILL, result.stderr.decode()[-2000:]
    assert checkpoints_in(tmp_path)
    model, history = train(strategy_of("one_device", devices), tmp_path)
    assert "resuming from" in capsys.readouterr().err
    assert digest(model) == undisturbed("one_device")[0]
    # The killed process trained without validation, so the history has none of its epochs.
    assert history.epoch == list(range(EPOCHS))
    assert len(history.history["loss"]) == EPOCHS


def test_sigterm_saves_the_step_it_came_in(devices, undisturbed, tmp_path):
    strategy = strategy_of("one_device", devices)
    for step in (3, 2, 9):
        model = make_model(strategy)
        trainer = tfdist.Trainer(model, checkpoint_dir=tmp_path, checkpoint_steps=100)
        term = Break(step, lambda: os.kill(os.getpid(), signal.SIGTERM))
        with pytest.raises(Preempted, match="which is saved") as caught:
            trainer.fit(**data_of("arrays"), epochs=EPOCHS, verbose=0, callbacks=[term])
        assert caught.value.exit_code == 143
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    totals = [int(name[11:21]) for name in sorted(checkpoints_in(tmp_path))]
    assert totals == [3, 5, 14]  # No step was lost, and none was made after the wish.
    model, _ = train(strategy, tmp_path, checkpoint_steps=100)
    assert digest(model) == undisturbed("one_device")[0]


@pytest.mark.long
def test_sigterm_in_validation_validates_again(devices, undisturbed, tmp_path):
    class Term(keras.callbacks.Callback):
        def on_test_batch_end(self, batch, logs=None):
            if batch == 1:
                os.kill(os.getpid(), signal.SIGTERM)

    strategy = strategy_of("one_device", devices)
    trainer = tfdist.Trainer(make_model(strategy), checkpoint_dir=tmp_path)
    with pytest.raises(Preempted, match="epoch 1 after step 7"):
        trainer.fit(
            **data_of("arrays"),
            epochs=EPOCHS,
            verbose=0,
            callbacks=[Term()],
            validation_data=(X, Y),
        )
    model, history = train(strategy, tmp_path, checkpoint_steps=None)
    want, whole = undisturbed("one_device")
    assert digest(model) == want
    assert history.history == whole


def test_a_second_sigterm_ends_at_once(tmp_path):
    program = (
        "import os, signal\n"
        "from tfdist.runtime.sigterm import Sigterm\n"
        "with Sigterm() as sigterm:\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "    assert sigterm.came\n"
        "    print('went on', flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "    print('still there', flush=True)\n"
    )
    command = [sys.executable, "-c", program]
    result = forked.run(command, capture_output=True, text=True, timeout=60)
    assert result.returncode == -signal.SIGTERM
    assert result.stdout == "went on\n"


def test_by_epoch_by_time_and_at_the_end(devices, tmp_path):
    strategy = strategy_of("one_device", devices)

    def totals(name):
        return [int(file[11:21]) for file in sorted(checkpoints_in(tmp_path / name))]

    train(strategy, tmp_path / "epochs", checkpoint_steps=None, keep_checkpoints=9)
    assert totals("epochs") == [7, 14, 21]
    train(strategy, tmp_path / "steps", checkpoint_steps=8, keep_checkpoints=9)
    assert totals("steps") == [8, 16, 21]
    often = {"checkpoint_steps": None, "checkpoint_seconds": 1e-9, "keep_checkpoints": 99}
    train(strategy, tmp_path / "time", **often)
    assert totals("time") == list(range(1, 22))
    rarely = {"checkpoint_steps": None, "checkpoint_seconds": 1e9}
    train(strategy, tmp_path / "rare", **rarely)
    assert totals("rare") == [21]


@pytest.mark.long
def test_a_finished_job_is_not_trained_again_but_further(devices, tmp_path):
    strategy = strategy_of("one_device", devices)
    model, _ = train(strategy, tmp_path, epochs=2)
    again, history = train(strategy, tmp_path, epochs=2)
    assert history.epoch == [0, 1]
    assert digest(again) == digest(model)
    further, history = train(strategy, tmp_path, epochs=3)
    assert history.epoch == [0, 1, 2]
    assert digest(further) == digest(train(strategy, tmp_path / "other", epochs=3)[0])


@pytest.mark.long
def test_a_second_fit_trains_on_and_resumes_too(devices, tmp_path):
    strategy = strategy_of("one_device", devices)

    def two_fits(folder, broken=None):
        model = make_model(strategy)
        trainer = tfdist.Trainer(model, checkpoint_dir=folder, checkpoint_steps=2)
        common = {**data_of("arrays"), "verbose": 0}
        first = trainer.fit(**common, epochs=1)
        breaks = [Break(broken)] if broken else []
        second = trainer.fit(**common, epochs=2, callbacks=breaks)
        return digest(model), first.epoch, second.epoch

    want = two_fits(tmp_path / "whole")
    assert want[1:] == ([0], [0, 1])
    with pytest.raises(Broken):
        two_fits(tmp_path / "broken", 10)
    assert two_fits(tmp_path / "broken") == (want[0], [], [0, 1])


@pytest.mark.long
def test_early_stopping_and_plateaus_remember(devices, tmp_path):
    strategy = strategy_of("one_device", devices)

    def run(folder, broken=()):
        for step in (*broken, None):
            model = make_model(strategy, optimizer=lambda: keras.optimizers.SGD(0.01))
            trainer = tfdist.Trainer(model, checkpoint_dir=folder)
            plateau = keras.callbacks.ReduceLROnPlateau("loss", 0.5, patience=2, min_delta=10)
            early = keras.callbacks.EarlyStopping(
                "val_loss", patience=4, min_delta=10, restore_best_weights=True
            )
            callbacks = [plateau, early, *([Break(step)] if step else [])]
            try:
                trainer.fit(X, Y, epochs=9, verbose=0, callbacks=callbacks, validation_data=(X, Y))
            except Broken:
                continue
            rate = float(model.optimizer.learning_rate.numpy())
            return digest(model), rate, early.stopped_epoch

    want = run(tmp_path / "whole")
    assert want[1:] == (pytest.approx(0.0025), 4)
    assert run(tmp_path / "broken", (3, 4)) == want
    # It stopped by itself: starting it again does not make it continue.
    assert run(tmp_path / "whole")[0] == want[0]


def test_another_models_directory_is_refused(devices, tmp_path):
    strategy = strategy_of("one_device", devices)
    train(strategy, tmp_path, epochs=1)
    before = sorted(checkpoints_in(tmp_path))
    for other, message in (
        (make_model(strategy, units=4), r"its model differs \(.*\(6, 4\).*here, .*\(6, 5\).*there"),
        (make_model(strategy, optimizer=keras.optimizers.SGD), "its optimizer differs"),
    ):
        trainer = tfdist.Trainer(other, checkpoint_dir=tmp_path)
        with pytest.raises(ConfigError, match=message):
            trainer.fit(X, Y, verbose=0)
    assert sorted(checkpoints_in(tmp_path)) == before


def test_a_damaged_one_is_refused_and_the_one_before_used(devices, undisturbed, tmp_path, capsys):
    strategy = strategy_of("one_device", devices)
    with pytest.raises(AssertionError):
        train(strategy, tmp_path, broken=(6, 99), epochs=1)
    newest = sorted(checkpoints_in(tmp_path))[-1]
    (tmp_path / newest).write_bytes((tmp_path / newest).read_bytes()[:-3])
    capsys.readouterr()
    model, _ = train(strategy, tmp_path)
    said = capsys.readouterr().err
    assert f"{newest} cannot be used: it has" in said
    assert "resuming from" in said
    assert digest(model) == undisturbed("one_device")[0]
    for name in checkpoints_in(tmp_path):
        (tmp_path / name).write_bytes(b"")
    with pytest.raises(ConfigError, match="no intact checkpoint .*it is empty"):
        train(strategy, tmp_path)


def test_a_directory_that_vanishes_is_an_error_at_the_next_save(devices, tmp_path):
    folder = tmp_path / "volume"

    def vanish():
        trainer._checkpoints.wait()
        folder.rename(tmp_path / "elsewhere")

    trainer = tfdist.Trainer(
        make_model(strategy_of("one_device", devices)), checkpoint_dir=folder, checkpoint_steps=2
    )
    with pytest.raises(CheckpointError, match="No such file") as caught:
        trainer.fit(X, Y, batch_size=BATCH, epochs=3, verbose=0, callbacks=[Break(5, vanish)])
    assert caught.value.exit_code == 1
    kept = checkpoints_in(tmp_path / "elsewhere")
    assert {name for name in kept if name.endswith(".tfdist")} == {
        "checkpoint-0000000002.tfdist",
        "checkpoint-0000000004.tfdist",
    }


def test_checkpoints_move_between_strategies(devices, tmp_path, capsys):
    names = ["mirrored", "one_device", "central_storage", "mirrored"]
    expected = None
    for number, name in enumerate(names):
        model = make_model(strategy_of(name, devices))
        trainer = tfdist.Trainer(model, checkpoint_dir=tmp_path)
        trainer.fit(**data_of("arrays"), epochs=number, verbose=0)  # Restores, and trains nothing.
        if expected is not None:
            assert digest(model) == expected
        trainer = tfdist.Trainer(model, checkpoint_dir=tmp_path)
        trainer.fit(**data_of("arrays"), epochs=number + 1, verbose=0)
        expected = digest(model)
    said = capsys.readouterr().err
    assert "replicas 2 to 1, MirroredStrategy to OneDeviceStrategy, global batch 8 as" in said
    assert "4 to 8 a replica" in said


@pytest.mark.parametrize("names", [("one_device", "mirrored"), ("mirrored", "one_device")], ids=str)
def test_loss_and_metrics_go_on_where_another_number_of_replicas_takes_over(
    names, devices, tmp_path
):
    """It does so in the first validation, so that one epoch's logs are the first's alone."""

    class Term(keras.callbacks.Callback):
        def on_test_batch_end(self, batch, logs=None):
            if batch == 1:
                os.kill(os.getpid(), signal.SIGTERM)

    def trained(name, folder, *callbacks):
        strategy = strategy_of(name, devices)
        keras.utils.set_random_seed(1)
        with strategy.scope():
            model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(1)])
            model.compile("sgd", "mse", metrics=["mae"])
        trainer = tfdist.Trainer(model, checkpoint_dir=folder)
        options = {"epochs": EPOCHS, "verbose": 0, "validation_data": (X, Y)}
        return trainer.fit(**data_of("arrays"), callbacks=callbacks, **options).history

    whole = trained(names[0], tmp_path / "whole")
    with pytest.raises(Preempted, match="epoch 1 after step 7"):
        trained(names[0], tmp_path, Term())
    history = trained(names[1], tmp_path)
    assert history.keys() == whole.keys() == {"loss", "mae", "val_loss", "val_mae"}
    for name, values in whole.items():
        np.testing.assert_allclose(history[name], values, rtol=1e-5, err_msg=name)


def test_another_global_batch_continues_at_the_same_example(devices, tmp_path, capsys):
    strategy = strategy_of("one_device", devices)
    with pytest.raises(Broken):
        tfdist.Trainer(make_model(strategy), checkpoint_dir=tmp_path, checkpoint_steps=2).fit(
            X, Y, batch_size=8, epochs=2, verbose=0, callbacks=[Break(5)]
        )
    seen = []
    log = keras.callbacks.LambdaCallback(
        on_train_batch_begin=lambda batch, logs: seen.append(batch)
    )
    model = make_model(strategy)
    tfdist.Trainer(model, checkpoint_dir=tmp_path).fit(
        X, Y, batch_size=16, epochs=1, verbose=0, callbacks=[log]
    )
    assert seen == [2, 3]  # After four batches of 8, two of 16.
    assert int(model.optimizer.iterations) == 4  # And so do learning-rate schedules.
    assert "global batch 8 to 16 (the rate is as compiled now, and its" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"checkpoint_steps": 0}, r"Trainer\(checkpoint_steps\): 0 is given; allowed"),
        ({"checkpoint_seconds": 0.0}, r"Trainer\(checkpoint_seconds\): 0.0 is given; allowed"),
        ({"keep_checkpoints": 0}, r"Trainer\(keep_checkpoints\): 0 is given; allowed"),
        ({"checkpoint_dir": None}, r"Trainer\(checkpoint_dir\): none is given, but"),
    ],
)
def test_arguments_are_checked(devices, tmp_path, arguments, message):
    model = make_model(strategy_of("one_device", devices))
    with pytest.raises(ConfigError, match=message):
        tfdist.Trainer(model, **{"checkpoint_dir": tmp_path, "checkpoint_steps": 3, **arguments})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("position", {"fit": 0, "wing": 3}),
        pytest.param("position", None, marks=pytest.mark.long),
        pytest.param("model", [["kernel"]], marks=pytest.mark.long),
        pytest.param("cluster", {}, marks=pytest.mark.long),
        pytest.param("logs", 7, marks=pytest.mark.long),
    ],
)
def test_odd_content_is_one_line_that_names_its_version(devices, tmp_path, field, value):
    strategy = strategy_of("one_device", devices)
    train(strategy, tmp_path, broken=(5,))
    (name,) = checkpoints_in(tmp_path)[-1:]
    with open_checkpoint(tmp_path / name) as read:
        manifest = {**read.manifest, "tfdist": "9.9", field: value}
        arrays = {name: read.read(name) for name in read.names}
    newer = tmp_path / "checkpoint-0000009999.tfdist"
    finish(begin(newer, manifest, arrays), newer)
    with pytest.raises(
        ConfigError, match=r"9999.tfdist was written by tfdist 9.9 and is not"
    ) as said:
        train(strategy, tmp_path)
    assert "\n" not in str(said.value)


MEMORY = """
import re, sys
from pathlib import Path

def memory(field="VmRSS"):
    return int(re.search(field + r":\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) / 1e3

import keras
import numpy as np
import tfdist

folder, epochs, width = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
keras.utils.set_random_seed(0)
model = keras.Sequential([keras.Input((8,)), *(keras.layers.Dense(width) for _ in range(3))])
model.compile(keras.optimizers.SGD(1e-6, momentum=0.9), "mse")
x = np.ones((32, 8), "float32")
steady, peak = [], []

class Look(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        steady.append(memory())
        Path("/proc/self/clear_refs").write_text("5")  # The peak starts over.

    def on_epoch_end(self, epoch, logs=None):
        if epoch:
            peak.append(memory("VmHWM"))

options = {"checkpoint_dir": folder, "checkpoint_steps": 4} if folder else {}
trainer = tfdist.Trainer(model, **options)
y = np.ones((32, width), "float32")
trainer.fit(x, y, batch_size=8, epochs=epochs, verbose=0, callbacks=[Look()])
print("MEMORY", steady[-1], max(peak))
"""


@pytest.mark.chaos
@pytest.mark.cluster
@pytest.mark.long
def test_a_resumed_run_needs_no_more_memory_and_a_save_little_more(tmp_path):
    """In processes of their own, as nothing else is to be in their memory."""
    width = 5000
    largest = 4e-6 * width**2  # MB; a whole checkpoint has four times as much.

    def run(folder, epochs):
        folder = folder and str(tmp_path / folder)
        command = [sys.executable, "-c", MEMORY, folder, str(epochs), str(width)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        (line,) = [line for line in done.stdout.splitlines() if line.startswith("MEMORY")]
        return map(float, line.split()[1:])

    _, without = run("", 4)
    before, peak = run("run", 4)
    after, _ = run("run", 8)
    print(f"{4 * largest:.0f} MB: {before:.0f} MB before a resume and {after:.0f} after it; a save")
    print(f"peaks {peak - without:.0f} MB above a step without one")
    assert after - before < 0.05 * before
    assert peak - without < largest + 20
