"""Features: optimizers, accumulation, precision, several steps a call."""

from __future__ import annotations

import dataclasses
from typing import Any

import keras
import numpy as np

from tests.training.conformance.setting import (
    BATCH,
    TWO_REPLICAS,
    WIDTH,
    Recipe,
    Setting,
    batches,
    classifier,
    classify,
    crossentropy,
    feature,
    inputs,
    labels,
    sgd,
    targets,
)

GROUP = "Optimizers and precision"


def _regress(optimizer: keras.optimizers.Optimizer, epochs: int = 2, **fit: Any) -> Recipe:
    model = keras.Sequential([keras.Input((WIDTH,)), keras.layers.Dense(2)])
    model.compile(optimizer, "mse")
    data = batches(inputs(21), targets(21, 2))  # 8, 8 and 5 rows
    return Recipe(model, fit={"x": data, "epochs": epochs, **fit})


def _enter(title: str, name: str, make: Any, **options: Any) -> None:
    def recipe(setting: Setting) -> Recipe:
        return _regress(make())

    recipe.__name__ = name
    feature(title, GROUP, **options)(recipe)


_SIMPLE: dict[str, tuple[str, Any]] = {
    "sgd_plain": ("SGD", lambda: keras.optimizers.SGD(0.05)),
    "sgd_nesterov": (
        "SGD, Nesterov momentum, weight decay",
        lambda: sgd(nesterov=True, weight_decay=0.01),
    ),
    "adam": ("Adam, amsgrad", lambda: keras.optimizers.Adam(0.02, amsgrad=True)),
    "adamw": ("AdamW", lambda: keras.optimizers.AdamW(0.02, weight_decay=0.05)),
    "adafactor": ("Adafactor", lambda: keras.optimizers.Adafactor(0.02)),
    "lamb": ("Lamb", lambda: keras.optimizers.Lamb(0.02)),
    "lion": ("Lion", lambda: keras.optimizers.Lion(0.01)),
    "rmsprop": ("RMSprop, centered, momentum", lambda: _rmsprop()),
    "nadam": ("Nadam", lambda: keras.optimizers.Nadam(0.02)),
    "adagrad": ("Adagrad", lambda: keras.optimizers.Adagrad(0.1)),
    "ftrl": ("Ftrl", lambda: keras.optimizers.Ftrl(0.1, l1_regularization_strength=0.01)),
    "muon": (
        "Muon, without its weight decay",
        lambda: keras.optimizers.Muon(0.02, weight_decay=None, adam_weight_decay=None),
    ),
    "global_clipnorm": (
        "global_clipnorm, of the reduced gradient",
        lambda: sgd(global_clipnorm=0.1),
    ),
    "clipnorm": ("clipnorm", lambda: sgd(clipnorm=0.1)),
    "clipvalue": ("clipvalue", lambda: sgd(clipvalue=0.05)),
    "ema": ("use_ema", lambda: sgd(use_ema=True, ema_momentum=0.8)),
    "ema_overwrite": (
        "use_ema with ema_overwrite_frequency",
        lambda: keras.optimizers.Adam(
            0.02, use_ema=True, ema_momentum=0.8, ema_overwrite_frequency=3
        ),
    ),
    "schedule": (
        "Learning-rate schedule",
        lambda: sgd(
            keras.optimizers.schedules.CosineDecay(0.0, 8, warmup_target=0.1, warmup_steps=3)
        ),
    ),
    "loss_scale_factor": ("loss_scale_factor", lambda: sgd(loss_scale_factor=64.0)),
}


def _rmsprop() -> keras.optimizers.Optimizer:
    return keras.optimizers.RMSprop(0.01, centered=True, momentum=0.5)


for _name, (_title, _make) in _SIMPLE.items():
    # Grappler may fuse products differently in a loop: one place of float32.
    _fused = _name in ("rmsprop", "muon")
    _refused = {"central_storage": "Nadam"} if _name == "nadam" else {}
    _enter(_title, _name, _make, one_device=1e-7 if _fused else 0.0, refused=_refused)


def _enter_compiled(name: str) -> None:
    title, make = _SIMPLE[name]

    def recipe(setting: Setting) -> Recipe:
        trainer = {} if setting.reference else {"compile_update": True}
        return dataclasses.replace(_regress(make()), trainer=trainer)

    recipe.__name__ = f"compiled_{name}"
    several = ("mirrored", "central_storage", "parameter_server")
    # XLA rounds a product and a sum once, not twice.
    feature(
        f"compile_update, {title}",
        GROUP,
        one_device=2e-6,
        refused=dict.fromkeys(several, "compile_update"),
    )(recipe)


_enter_compiled("adamw")
_enter_compiled("ema_overwrite")


@feature(
    "accumulate_steps=3 equals a batch three times as large",
    GROUP,
    one_device=1e-5,
    refused={"parameter_server": "accumulate_steps"},
)
def accumulate(setting: Setting) -> Recipe:
    model = classifier()
    optimizer = keras.optimizers.Adam(0.02, global_clipnorm=0.5)
    model.compile(optimizer, crossentropy(), metrics=["accuracy"])
    x, y = (
        inputs(7 * BATCH),
        labels(7 * BATCH),
    )  # seven batches: two groups of three and one left over
    if setting.reference:
        # Metrics are over the same rows; the loss is tracked with the same row counts.
        return Recipe(model, fit={"x": batches(x, y, batch=3 * BATCH), "epochs": 2})
    if not setting.trainer:
        optimizer.gradient_accumulation_steps = 3
    return Recipe(
        model,
        fit={"x": batches(x, y), "epochs": 2},
        trainer={"accumulate_steps": 3},
    )


@feature("steps_per_execution=4", GROUP)
def steps_per_execution(setting: Setting) -> Recipe:
    model = classifier()
    model.compile(sgd(), crossentropy(), metrics=["accuracy"], steps_per_execution=4)
    return classify(model)


@feature("Trainer(steps_per_call=4, bytes_per_pack=64)", GROUP)
def steps_per_call(setting: Setting) -> Recipe:
    model = classifier()
    model.compile(sgd(), crossentropy(), metrics=["accuracy"])
    recipe = classify(model)
    recipe.trainer = {"steps_per_call": 4, "bytes_per_pack": 64}
    return recipe


@feature("run_eagerly", GROUP)
def run_eagerly(setting: Setting) -> Recipe:
    model = classifier()
    model.compile(sgd(), crossentropy(), metrics=["accuracy"], run_eagerly=True)
    recipe = classify(model, rows=16)
    recipe.predict = None
    return recipe


# bfloat16 has 8 binary digits: five units of the last one, after twelve updates. Processors without
# instructions for it round elsewhere (2.7e-2 on one with AVX2 only).
@feature("mixed_bfloat16", GROUP, tolerance=4e-2)
def mixed_bfloat16(setting: Setting) -> Recipe:
    keras.config.set_dtype_policy("mixed_bfloat16")
    model = classifier()
    model.compile(sgd(), crossentropy(), metrics=["accuracy"])
    return classify(model)


# A value that lies between two of float8's is rounded up here and down there, by a sixteenth of it.
@feature("float8: scales that are overwritten with their gradient", GROUP, tolerance=2e-3)
def float8(setting: Setting) -> Recipe:
    model = classifier()
    model.quantize("float8")
    model.compile(sgd(), crossentropy(), metrics=["accuracy"])
    rows = 5 * BATCH + 1  # The last batch leaves a replica without a row.
    return Recipe(
        model,
        fit={"x": batches(inputs(rows), labels(rows)), "epochs": 2},
        evaluate={"x": batches(inputs(17, seed=5), labels(17, seed=6))},
        predict={"x": inputs(17, seed=5), "batch_size": BATCH},
    )


@feature("mixed_float16, loss scaling, a replica overflows", GROUP, tolerance=5e-3)
def mixed_float16(setting: Setting) -> Recipe:
    keras.config.set_dtype_policy("mixed_float16")
    model = classifier()
    model.compile(sgd(), crossentropy(), metrics=["accuracy"])
    # The first scale, 2**15, overflows nothing here; the last row of batch 2 does.
    x = inputs()
    x[2 * BATCH - 1] = 6e4
    recipe = classify(model)
    recipe.fit = {"x": batches(x, labels()), "epochs": 2}
    recipe.after = lambda runner: {
        "scale": float(np.asarray(model.optimizer.dynamic_scale)),
        "good_steps": int(np.asarray(model.optimizer.step_counter)),
        "updates": int(np.asarray(model.optimizer.inner_optimizer.iterations)),
    }
    recipe.evaluate = recipe.predict = None
    return recipe


@feature(
    "Muon with weight decay",
    GROUP,
    refused=dict.fromkeys((*TWO_REPLICAS, "parameter_server"), "weight_decay"),
)
def muon_decay(setting: Setting) -> Recipe:
    return _regress(keras.optimizers.Muon(0.02))


# XLA rounds by what it fuses; plain Keras gives it the whole step.
@feature(
    "jit_compile=True",
    GROUP,
    one_device=1e-5,
    refused=dict.fromkeys((*TWO_REPLICAS, "parameter_server"), "jit_compile"),
)
def jit_compile(setting: Setting) -> Recipe:
    model = classifier()
    model.compile(sgd(), crossentropy(), jit_compile=True)
    return Recipe(model, fit={"x": batches(inputs(14), labels(14)), "epochs": 1})


@feature(
    "gradient_accumulation_steps of the optimizer",
    GROUP,
    refused=dict.fromkeys((*TWO_REPLICAS, "parameter_server"), "accumulate_steps"),
)
def gradient_accumulation(setting: Setting) -> Recipe:
    return _regress(keras.optimizers.SGD(0.05, gradient_accumulation_steps=2))
