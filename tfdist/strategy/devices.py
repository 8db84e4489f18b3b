"""Lists this machine's devices, splits the CPU, and makes GPU memory grow on demand."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from tfdist.errors import ConfigError
from tfdist.validation import whole_number


def virtual_devices(count: int) -> list[str]:
    """Splits this machine's CPU into logical devices, to test strategies without GPUs.

    Call it before anything that starts TensorFlow's runtime; calling it again with
    the same number is harmless.

    Args:
        count: The number of logical CPU devices.

    Returns:
        Their names, `["CPU:0", "CPU:1", ...]`.

    Raises:
        ConfigError: `count` is not positive, or the runtime has started with another layout.

    Example:
        >>> tfdist.virtual_devices(4)
        ['CPU:0', 'CPU:1', 'CPU:2', 'CPU:3']
    """
    count = whole_number("virtual_devices(count)", count)
    cpu = tf.config.list_physical_devices("CPU")[0]
    try:
        tf.config.set_logical_device_configuration(
            cpu, [tf.config.LogicalDeviceConfiguration() for _ in range(count)]
        )
    except RuntimeError:
        have = len(tf.config.list_logical_devices("CPU"))
        if have != count:
            raise ConfigError(
                f"virtual_devices(count): {count} is given, but TensorFlow has started with "
                f"{have}; call virtual_devices before anything else touches TensorFlow"
            ) from None
    return [f"CPU:{i}" for i in range(count)]


def find_devices(strategy: str, wanted: Sequence[str] | None) -> list[str]:
    """Returns the devices to use, as `GPU:0` or `CPU:0`.

    Args:
        strategy: The strategy that uses them, for the message.
        wanted: Their names; None for all GPUs, or else all logical CPUs.

    Raises:
        ConfigError: A device does not exist or is named twice.
    """
    grow_gpu_memory()
    existing = [
        f"{device.device_type}:{device.name.rsplit(':', 1)[1]}"
        for kind in ("GPU", "CPU")
        for device in tf.config.list_logical_devices(kind)
    ]
    if wanted is None:
        gpus = [name for name in existing if name.startswith("GPU")]
        return gpus or [name for name in existing if name.startswith("CPU")]
    if not wanted:
        raise ConfigError(f"strategy {strategy}: no device is given; there are: {existing}")
    found = []
    for name in wanted:
        short = name.upper().removeprefix("/").removeprefix("DEVICE:")
        if short not in existing:
            raise ConfigError(
                f"strategy {strategy}: device {name!r} does not exist; there are: "
                f"{', '.join(existing)}"
            )
        if short in found:
            raise ConfigError(f"strategy {strategy}: device {name!r} is given twice")
        found.append(short)
    return found


def full_name(device: str) -> str:
    """Returns TensorFlow's name of a device that `find_devices` returned."""
    return f"/device:{device}"


def grow_gpu_memory() -> None:
    """Makes TensorFlow take GPU memory as it needs it, so that tasks can share a GPU."""
    for gpu in tf.config.list_physical_devices("GPU"):
        try:
            tf.config.experimental.set_memory_growth(gpu, True)
        except (RuntimeError, ValueError):
            return  # The runtime has started, and it is too late to change it.
