"""CentralStorageStrategy: one process, variables on one device, replicas on all.

    python examples/central_storage.py

    test accuracy 0.9226, loss 0.3260, 2 replica(s)

On a machine with GPUs, leave virtual_devices out: the GPUs compute, the CPU keeps the
variables.
"""

import keras
from absl import app, flags, logging

import tfdist

EPOCHS = flags.DEFINE_integer("epochs", 10, "Passes over the training data.")
BATCH = flags.DEFINE_integer("per_replica_batch", 32, "Examples a replica takes at a time.")
DEVICES = flags.DEFINE_integer("virtual_devices", 2, "Parts to split the CPU into.")


def main(argv: list[str]) -> None:
    del argv
    logging.set_verbosity(logging.WARNING)
    keras.utils.set_random_seed(0)
    tfdist.virtual_devices(DEVICES.value)
    strategy = tfdist.build_strategy("central_storage")
    digits = tfdist.data.load("digits")
    plan = tfdist.scale(
        per_replica_batch=BATCH.value,
        num_replicas=strategy.num_replicas_in_sync,
        base_learning_rate=0.16,
        epochs=EPOCHS.value,
        num_examples=digits.num_train,
        warmup_epochs=1,
        decay="cosine",
    )
    print(plan)
    with strategy.scope():
        model = tfdist.models.small_cnn(digits.image_shape, digits.num_classes, batch_norm="plain")
        model.compile(
            optimizer=keras.optimizers.Adam(plan.schedule()),
            loss="sparse_categorical_crossentropy",
            metrics=["accuracy"],
        )
    trainer = tfdist.Trainer(model)
    trainer.fit(digits.train(plan.global_batch), epochs=EPOCHS.value)
    loss, accuracy = trainer.evaluate(digits.test(plan.global_batch), verbose=0)
    print(f"test accuracy {accuracy:.4f}, loss {loss:.4f}, {plan.num_replicas} replica(s)")


if __name__ == "__main__":
    app.run(main)
