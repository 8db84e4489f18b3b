"""ParameterServerStrategy: workers step independently, variables are on ps tasks.

    tfdist launch --chief 1 --ps 1 --workers 2 -- python examples/parameter_server.py

    test accuracy 0.9293, loss 0.3309, 1 replica(s)

Without the launcher, start it once per task of
cluster_specs/chief_two_workers_one_ps.json, each with its own task in TF_CONFIG:

    TF_CONFIG='{"cluster": ..., "task": {"type": "ps", "index": 0}}' \\
        python examples/parameter_server.py
"""

import keras
from absl import app, flags, logging

import tfdist

EPOCHS = flags.DEFINE_integer("epochs", 10, "Passes over the training data.")
BATCH = flags.DEFINE_integer("per_replica_batch", 64, "Examples a replica takes at a time.")


def main(argv: list[str]) -> None:
    del argv
    logging.set_verbosity(logging.WARNING)
    keras.utils.set_random_seed(0)
    cluster = tfdist.Cluster.from_environment()
    if tfdist.serve(cluster):  # A ps or a worker: it has served, and the chief is done.
        return
    strategy = tfdist.build_strategy("parameter_server", cluster)
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
