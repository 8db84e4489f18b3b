"""Features: what holds while workers of ParameterServerStrategy work at the same time."""

from __future__ import annotations

from typing import Any

import keras

from tests.training.conformance.setting import (
    BATCH,
    WIDTH,
    Recipe,
    Setting,
    batches,
    classifier,
    classify,
    crossentropy,
    feature,
    generator,
    inputs,
    sgd,
)

GROUP = "Workers that overlap (parameter_server: two batches under way on each)"


# Without a rate the weights stay, so that no order of the batches changes the counts.
@feature("Every example counts once in loss, metrics, steps", GROUP, asynchronous=True)
def counts(setting: Setting) -> Recipe:
    model = classifier()
    metrics = ["accuracy", keras.metrics.SparseTopKCategoricalAccuracy(2)]
    model.compile(sgd(0.0, momentum=0.0), crossentropy(), metrics=metrics)
    return classify(model, rows=250)


@feature("A schedule advances once a step", GROUP, asynchronous=True, only=("after",))
def schedule_steps(setting: Setting) -> Recipe:
    model = classifier()
    rate = keras.optimizers.schedules.PolynomialDecay(0.1, 200, 0.0)
    model.compile(sgd(rate), crossentropy())
    recipe = classify(model, rows=250)

    def read(runner: Any) -> dict[str, Any]:
        optimizer = model.optimizer
        return {
            "steps": optimizer.iterations.numpy(),
            "rate": keras.ops.convert_to_numpy(optimizer.learning_rate),
        }

    recipe.after = read
    return recipe


@feature("Training gets better", GROUP, asynchronous=True, only=("after",))
def gets_better(setting: Setting) -> Recipe:
    model = classifier()
    model.compile(keras.optimizers.Adam(0.01), crossentropy(), metrics=["accuracy"])
    x = inputs(280)
    y = (x @ generator(4).normal(size=(WIDTH, 3))).argmax(-1).astype("int32")
    recipe = Recipe(model, fit={"x": batches(x, y, batch=BATCH), "epochs": 6})

    def judge(runner: Any) -> dict[str, Any]:
        loss, accuracy = runner.evaluate(x, y, batch_size=70, verbose=0)
        assert loss < 0.8, loss  # chance is 1.1
        assert accuracy > 0.7, accuracy
        return {"better": True}

    recipe.after = judge
    return recipe
