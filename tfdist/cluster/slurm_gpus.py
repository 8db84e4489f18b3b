"""Divides a node's GPUs among its tasks, where Slurm gives all of them to each.

`srun --ntasks-per-node=2 --gres=gpu:2` shows both tasks of a node both GPUs, and each would use
both. With `--gpus-per-task` or `--gpu-bind` Slurm divides them itself.
"""

from __future__ import annotations

from collections.abc import Mapping

from tfdist.cluster.slurm import is_slurm_step, neighbours
from tfdist.validation import plural, reject

_VISIBLE = "CUDA_VISIBLE_DEVICES"


def share_of_gpus(environ: Mapping[str, str]) -> str | None:
    """Returns the value to set CUDA_VISIBLE_DEVICES to; None to leave it unchanged.

    Each task that computes gradients gets as many GPUs, in the order of the ranks; one that does
    not, such as a ps, gets none.

    Raises:
        ConfigError: There are fewer GPUs than tasks to share them.
    """
    visible = [part for part in environ.get(_VISIBLE, "").split(",") if part.strip()]
    on_node = environ.get("SLURM_GPUS_ON_NODE", "")
    if not visible or str(len(visible)) != on_node or not is_slurm_step(environ):
        return None
    computing, place, tasks = neighbours(environ)
    if tasks < 2:
        return None
    if place is None:
        return ""
    size = len(visible) // computing
    if not size:
        reject(
            _VISIBLE,
            f"{plural(len(visible), 'GPU')} for {computing} tasks that compute on this node; use "
            f"--gres=gpu:{computing}, or --ntasks-per-node={len(visible)}",
        )
    return ",".join(visible[place * size : (place + 1) * size])
