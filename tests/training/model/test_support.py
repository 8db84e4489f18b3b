"""What would not give what one device gives is refused by name, and nothing else is."""

from __future__ import annotations

import keras
import pytest

import tfdist
from tfdist.errors import ConfigError
from tfdist.training.model.support import check_accumulation, check_supported, check_update_within

SUM = keras.losses.MeanSquaredError("sum")
optimizers = keras.optimizers


class Own(keras.Sequential):
    def train_step(self, data):
        return super().train_step(data)


class ParameterServerStrategyV2:
    """Known by its name; the real one needs a cluster, which the conformance suite starts."""

    num_replicas_in_sync = 1


def strategy_of(kind: str, devices):
    if kind == "parameter_server":
        return ParameterServerStrategyV2()
    if kind == "one_device":
        return tfdist.one_device_strategy(devices[0])
    return getattr(tfdist, f"{kind}_strategy")(devices[:2])


def compiled(optimizer="sgd", loss="mse", kind=keras.Sequential, second=None, **arguments):
    model = kind([keras.Input((3,)), keras.layers.Dense(1)])
    if second is not None:
        model.second = second
    model.compile(optimizer, loss, **arguments)
    return model


ACCEPTED = {
    "plain": lambda: compiled("adam", SUM, metrics=["mae"]),
    "averages": lambda: compiled(optimizers.SGD(use_ema=True, ema_overwrite_frequency=2)),
    "weight decay": lambda: compiled(optimizers.AdamW(weight_decay=0.1)),
    "muon": lambda: compiled(optimizers.Muon(weight_decay=None, adam_weight_decay=None)),
    "loss scale": lambda: compiled(optimizers.LossScaleOptimizer(optimizers.SGD())),
    "two optimizers": lambda: compiled(kind=Own, second=optimizers.Adam(use_ema=True)),
    "no xla": lambda: compiled(jit_compile=False),
}


@pytest.mark.parametrize("kind", ["one_device", "mirrored", "central_storage"])
def test_accepted(devices, kind):
    strategy = strategy_of(kind, devices)
    for make in ACCEPTED.values():
        with strategy.scope():
            model = make()
        check_supported(model, strategy)
        if model.optimizer is not None and not hasattr(model, "second"):
            check_accumulation(model, 2)


@pytest.mark.parametrize(
    "make",
    [
        lambda: compiled(jit_compile=True),
        lambda: compiled("nadam"),
    ],
)
def test_accepted_on_one_device_only(devices, make):
    strategy = strategy_of("one_device", devices)
    with strategy.scope():
        model = make()
    check_supported(model, strategy)


def accumulating() -> keras.Model:
    return compiled(optimizers.SGD(gradient_accumulation_steps=4))


def stateful() -> keras.Model:
    recurrent = keras.layers.GRU(2, stateful=True, name="memory")
    model = keras.Sequential([keras.Input(batch_shape=(4, 3, 2)), recurrent])
    model.compile("sgd", "mse")
    return model


def second(**options):
    return lambda: compiled(kind=Own, second=optimizers.SGD(**options))


def second_with_a_scaled_one() -> keras.Model:
    scaling = optimizers.LossScaleOptimizer(optimizers.SGD())
    return compiled(scaling, kind=Own, second=optimizers.SGD())


REFUSED = [
    ("mirrored", accumulating, r"gradient_accumulation_steps: 4 .*MirroredStrategy.*accumulate"),
    ("one_device", accumulating, r"gradient_accumulation_steps.*OneDeviceStrategy"),
    ("one_device", lambda: compiled(optimizers.Muon()), r"optimizer.weight_decay: Muon"),
    (
        "one_device",
        lambda: compiled(optimizers.Muon(weight_decay=None, adam_weight_decay=0.1)),
        r"optimizer.adam_weight_decay: Muon",
    ),
    (
        "one_device",
        lambda: compiled(optimizers.LossScaleOptimizer(optimizers.Muon(weight_decay=0.1))),
        r"optimizer.weight_decay: Muon",
    ),
    ("central_storage", lambda: compiled("nadam"), r"optimizer: Nadam.*CentralStorageStrategy"),
    ("mirrored", lambda: compiled(jit_compile=True), r"jit_compile=True.*collectives"),
    ("parameter_server", lambda: compiled(jit_compile=True), r"jit_compile=True.*other tasks"),
    ("mirrored", stateful, r"layer 'memory': stateful=True .*MirroredStrategy.*one device"),
    ("parameter_server", stateful, r"layer 'memory': stateful=True .*ParameterServerStrategy"),
    ("parameter_server", second(), r"Own.train_step: .*several.*ParameterServerStrategy"),
    ("mirrored", second_with_a_scaled_one, r"Own.train_step: .*loss scaling"),
    ("mirrored", second(gradient_accumulation_steps=2), r"gradient_accumulation_steps of one"),
    (
        "mirrored",
        second(use_ema=True, ema_overwrite_frequency=2),
        r"ema_overwrite_frequency of",
    ),
]


@pytest.mark.parametrize(("kind", "make", "named"), REFUSED)
def test_refused(devices, kind, make, named):
    strategy = strategy_of(kind, devices)
    if kind == "parameter_server":
        model = make()
    else:
        with strategy.scope():
            model = make()
    with pytest.raises(ConfigError, match=named):
        check_supported(model, strategy)


@pytest.mark.parametrize(("kind", "make", "named"), REFUSED[:3])
def test_all_goes_where_keras_own_steps_run(devices, kind, make, named):
    check_supported(make(), strategy_of("one_device", devices), runs_keras_steps=True)
    model = keras.Sequential([keras.Input((3,))])
    with pytest.raises(ConfigError, match="not compiled"):
        check_supported(model, strategy_of("one_device", devices), runs_keras_steps=True)


def test_a_step_that_reads_what_it_has_updated(devices):
    mirrored = strategy_of("mirrored", devices)
    check_update_within(compiled(kind=Own), mirrored, accumulates=False)
    scaled = compiled(optimizers.LossScaleOptimizer(optimizers.SGD()), kind=Own)
    averaged = compiled(optimizers.SGD(use_ema=True, ema_overwrite_frequency=2), kind=Own)
    for model, strategy, accumulates, named in (
        (compiled(kind=Own), ParameterServerStrategyV2(), False, "ParameterServerStrategy"),
        (compiled(kind=Own), mirrored, True, "accumulate_steps"),
        (scaled, mirrored, False, "loss scaling"),
        (averaged, mirrored, False, "ema_overwrite_frequency"),
    ):
        with pytest.raises(ConfigError, match=rf"Own.train_step: reads weights .*{named}"):
            check_update_within(model, strategy, accumulates=accumulates)


def test_a_model_that_is_not_compiled_or_of_another_strategy(devices):
    strategy = strategy_of("mirrored", devices)
    with pytest.raises(ConfigError, match="not compiled"):
        check_supported(keras.Sequential([keras.Input((3,))]), strategy)
    with pytest.raises(ConfigError, match=r"kernel was not made under MirroredStrategy"):
        check_supported(compiled(), strategy)
    optimizer = optimizers.LossScaleOptimizer(optimizers.Adam())
    with strategy.scope():
        model = compiled(optimizer)
    with pytest.raises(ConfigError, match=r"iteration was not made under MirroredStrategy"):
        check_supported(model, strategy)


def test_accumulation(devices):
    with strategy_of("mirrored", devices).scope():
        check_accumulation(compiled(), 2)
        model = compiled(kind=Own, second=optimizers.SGD())
    with pytest.raises(ConfigError, match=r"accumulate_steps.*Own.train_step"):
        check_accumulation(model, 2)

    class Remote:
        distribute_strategy = ParameterServerStrategyV2()

    with pytest.raises(ConfigError, match=r"accumulate_steps.*ParameterServerStrategy"):
        check_accumulation(Remote(), 2)
