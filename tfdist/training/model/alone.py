"""Detects a model that would train alone although several workers or replicas are set up."""

from __future__ import annotations

import tensorflow as tf

from tfdist.cluster import Cluster
from tfdist.errors import ConfigError
from tfdist.runtime.log import LOGGER
from tfdist.strategy import registry
from tfdist.strategy.kinds import BY_NAME, choose, kind_of, public_name


def check_made_for_cluster(strategy: tf.distribute.Strategy) -> None:
    """Rejects a model that each process of a cluster would train alone.

    Only warns where a strategy of several replicas was built and the model was made outside of its
    scope, as the strategy may be for another model.

    Args:
        strategy: The strategy that the model was made under.

    Raises:
        ConfigError: The environment names several workers, and the model's strategy is not one
            for several workers.
    """
    if kind_of(strategy).needs_cluster:
        return
    cluster = Cluster.from_environment()
    meant = choose(cluster)[0]  # Not a name where the choice depends on the devices.
    if meant in BY_NAME and BY_NAME[meant].needs_cluster:
        raise ConfigError(
            f"Trainer(model): it was made under {public_name(strategy)}, but this task is "
            f"{cluster.task} of a cluster of {len(cluster.tasks)}, which would each train "
            f"their own model; make and compile it inside 'with strategy.scope():' of "
            f"tfdist.build_strategy({meant!r}), or start one task"
        )
    other = registry.newest_of_several_replicas()
    if other is not None and strategy.num_replicas_in_sync == 1:
        LOGGER.warning(
            "Trainer(model): it was made outside the scope of the %s of %d replicas that was "
            "built, and trains on one; if that is not intended, make and compile it inside "
            "'with strategy.scope():'",
            public_name(other),
            other.num_replicas_in_sync,
        )
