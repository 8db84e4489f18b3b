"""Adds up the memory of a replica in training, as Keras allocates it."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from tfdist.scaling.cost import FLOAT32_BYTES

# Values that an optimizer keeps for each weight.
SLOTS = {
    "sgd": 0,
    "momentum": 1,
    "rmsprop": 1,
    "adagrad": 1,
    "adam": 2,
    "adamw": 2,
    "lamb": 2,
}
# Bytes of an activation. Under mixed precision weights, gradients and slots stay float32 in Keras.
PRECISIONS = {"float32": 4, "mixed_float16": 2, "mixed_bfloat16": 2}


@dataclass(frozen=True)
class Memory:
    """The memory of a replica in training, in bytes.

    Attributes:
        weights: The weights, float32.
        cast_weights: Their copy in the type of the computation, under mixed precision.
        gradients: The gradients, float32.
        optimizer: What the optimizer keeps for each weight.
        activations: What the backward pass needs of the forward pass, of the replica's batch.
    """

    weights: float
    cast_weights: float
    gradients: float
    optimizer: float
    activations: float

    @property
    def total(self) -> float:
        """All of them together; what the framework itself needs is not counted."""
        return sum(asdict(self).values())


def replica_memory(
    parameters: float,
    *,
    trainable: float | None = None,
    activations: float = 0,
    batch: int = 1,
    optimizer: str = "momentum",
    precision: str = "float32",
    shards: int = 1,
) -> Memory:
    """Returns the memory of a replica in training.

    Args:
        parameters: Values of all weights.
        trainable: Values of those that are trained; all if None.
        activations: Values that a forward pass of one image keeps for the backward pass.
        batch: Images a replica and step.
        optimizer: One of `SLOTS`.
        precision: One of `PRECISIONS`, Keras' names of policies.
        shards: Replicas among which the optimizer's values are divided: 1 unless updates are
            sharded, as in Rajbhandari et al., "ZeRO" (2020, arXiv:1910.02054), stage 1.

    Example:
        >>> memory = replica_memory(25e6, optimizer="adam", precision="mixed_float16", shards=8)
        >>> [round(part / 1e6) for part in (memory.cast_weights, memory.optimizer, memory.total)]
        [50, 25, 275]
    """
    trained = parameters if trainable is None else trainable
    each = PRECISIONS[precision]
    return Memory(
        weights=FLOAT32_BYTES * parameters,
        cast_weights=each * parameters if each < FLOAT32_BYTES else 0.0,
        gradients=FLOAT32_BYTES * trained,
        optimizer=FLOAT32_BYTES * SLOTS[optimizer] * trained / shards,
        activations=each * activations * batch,
    )
