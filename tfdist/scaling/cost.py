"""Counts what training costs: operations, machine time, memory, money.

A multiply-add is two floating-point operations (FLOP). A backward pass has two products for each
of a forward pass, one for the gradient of the input and one for that of the weights, so a step of
training costs three forward passes. This way of counting, and the PFLOP/s-day, are those of Amodei
and Hernandez, "AI and Compute" (OpenAI, 2018), appendix.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

FLOP_PER_MULTIPLY_ADD = 2
# Forward, gradient of the input, gradient of the weights.
PASSES = 3
SECONDS_PER_DAY = 86_400
PFLOP_PER_SECOND_DAY = 1e15 * SECONDS_PER_DAY
FLOAT32_BYTES = 4
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
class Device:
    """A device that computes.

    Attributes:
        tflops: The most it could do, in 10^12 FLOP a second.
        utilization: The fraction of that which training attains, above 0 up to 1.
    """

    tflops: float
    utilization: float

    @property
    def flop_per_second(self) -> float:
        """What training attains, in FLOP a second."""
        return 1e12 * self.tflops * self.utilization

    def delivered(self, seconds: float, count: int = 1) -> float:
        """Returns the FLOP that `count` devices do in a time.

        Example:
            >>> round(Device(41.58, 0.33).delivered(86_400, count=2) / 1e18, 2)
            2.37
        """
        return self.flop_per_second * seconds * count


def forward_flop(multiply_adds: float) -> float:
    """Returns the FLOP of a forward pass of one image.

    Args:
        multiply_adds: Its multiply-adds.
    """
    return FLOP_PER_MULTIPLY_ADD * multiply_adds


def training_flop(multiply_adds: float, images: float = 1, epochs: float = 1) -> float:
    """Returns the FLOP of training on so many images, so many times.

    Args:
        multiply_adds: Those of a forward pass of one image.
        images: Images per epoch.
        epochs: Epochs.

    Example:
        ResNet-152 on ImageNet: 10.5 EFLOP, or 0.12 PFLOP/s-days.

        >>> flop = training_flop(11.4e9, images=1.2e6, epochs=128)
        >>> round(flop / 1e18, 1), round(pflop_per_second_days(flop), 2)
        (10.5, 0.12)
    """
    return PASSES * forward_flop(multiply_adds) * images * epochs


def pflop_per_second_days(flop: float) -> float:
    """Returns FLOP in days of 10^15 FLOP a second."""
    return flop / PFLOP_PER_SECOND_DAY


def flop_per_byte(multiply_adds: float, input_bytes: float) -> float:
    """Returns the FLOP of training for each byte of input, the arithmetic intensity of a data set.

    Args:
        multiply_adds: Those of a forward pass of one image.
        input_bytes: The bytes of one image as the model takes it: float32, not compressed.

    Example:
        ResNet-152 at 224 x 224 pixels, of three channels and four bytes: 114 kFLOP a byte.

        >>> round(flop_per_byte(11.4e9, 224 * 224 * 3 * 4) / 1e3)
        114
    """
    return training_flop(multiply_adds) / input_bytes


def price(device_seconds: float, per_hour: float) -> float:
    """Returns what devices cost.

    Args:
        device_seconds: Seconds, added up over the devices.
        per_hour: The price of an hour of one device, in any currency.
    """
    return device_seconds / 3600 * per_hour


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
        batch: Images per replica and step.
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
