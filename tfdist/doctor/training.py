"""The checks that all tasks make together: connections, clocks, files, a step, a checkpoint."""

from __future__ import annotations

import shutil
import statistics
import tempfile
import time

import keras
import numpy as np
import tensorflow as tf

from tfdist.cluster import Cluster
from tfdist.collectives.peer_errors import peers_error
from tfdist.collectives.process_group import ProcessGroup
from tfdist.doctor.finding import FAILED, WARNING, Findings
from tfdist.doctor.machine import versions
from tfdist.doctor.peers import Peers, Servers, Workers
from tfdist.errors import EXIT_CONFIG, CheckpointError, ConfigError, OutOfStepError, TfdistError
from tfdist.launcher.machine import gpu_ids
from tfdist.strategy.build import build_strategy
from tfdist.strategy.kinds import kind_of, public_name
from tfdist.strategy.serve import serve
from tfdist.training.checkpoint.directory import CheckpointDirectory
from tfdist.training.trainer import Trainer
from tfdist.validation import plural

# Seconds that two clocks may be apart before events in logs are taken for each other.
_APART = 1.0
_CALLS = 10
_ROWS = 8  # Of each replica.


def examine_training(findings: Findings, cluster: Cluster, checkpoint_dir: str) -> None:
    """Connects the tasks, which have met, and tries everything that training needs.

    Args:
        findings: Receives the results.
        cluster: The cluster of this task.
        checkpoint_dir: The directory that training is to save to; "" for none.

    Raises:
        TfdistError: A check failed in a way that makes the remaining ones impossible.
    """
    _Examination(findings, cluster, checkpoint_dir).run()


class _Examination:
    def __init__(self, findings: Findings, cluster: Cluster, checkpoint_dir: str) -> None:
        self._findings = findings
        self._cluster = cluster
        self._folder = checkpoint_dir
        self._check = ""

    def run(self) -> None:
        """Makes all checks; the first that raises ends them."""
        try:
            self._run()
        except Exception as error:
            found = error if isinstance(error, TfdistError) else None
            found = found or peers_error(error, str(self._cluster.task))
            if found is None or isinstance(found, (CheckpointError, OutOfStepError)):
                text = " ".join(str(error).split())[:300]
                found = ConfigError(f"{self._check}: {type(error).__name__}: {text}")
            self._findings.fail(self._check, found)
            raise found from error

    def _run(self) -> None:
        self._check = "devices"
        self._devices()
        self._check = "connection"
        began = time.monotonic()
        if serve(self._cluster):
            self._add("the chief has done its checks with this task, and ended")
            return
        strategy = build_strategy("auto", self._cluster)
        replicas = plural(strategy.num_replicas_in_sync, "replica")
        self._add(f"{public_name(strategy)}, {replicas}, {time.monotonic() - began:.1f} s")
        kind = kind_of(strategy)
        group = ProcessGroup(strategy, is_synchronous=kind.is_synchronous)
        if kind.is_synchronous:
            workers = Workers(group)
            if not self._versions(workers):
                return
            can_save = self._ask(workers, any(workers.exchange(self._folder)))
            self._all_reduce(group)
        else:
            can_save = self._ask(Servers(self._cluster), bool(self._folder))
        self._step(strategy)
        if can_save:
            self._checkpoint(strategy, group)

    def _add(self, text: str, **more: str | int) -> None:
        self._findings.add(self._check, text, **more)  # type: ignore[arg-type]

    def _devices(self) -> None:
        found = tf.config.list_physical_devices("GPU")
        if found:
            kinds = {
                tf.config.experimental.get_device_details(gpu).get("device_name", "GPU")
                for gpu in found
            }
            self._add(f"{plural(len(found), 'GPU')}: {', '.join(sorted(kinds))}")
        elif gpu_ids():
            self._add(
                f"the machine has GPUs ({', '.join(gpu_ids())}), but TensorFlow sees none; "
                "pip install 'tfdist[gpu]', and check the driver",
                state=WARNING,
            )
        else:
            self._add("no GPU, CPUs only")

    def _versions(self, workers: Workers) -> bool:
        self._check = "versions"
        found = workers.exchange(versions())
        if len(set(found)) > 1:
            each = "; ".join(f"{t}: {v}" for t, v in zip(workers.tasks, found, strict=True))
            text = f"the tasks have different versions: {each}; install the same on all machines"
            self._add(text, state=FAILED, exit_code=EXIT_CONFIG)
            return False
        if len(found) > 1:
            self._add("the same on all workers")
        return True

    def _ask(self, peers: Peers, has_folder: bool) -> bool:
        """Compares clocks and directories; returns whether the chief can save."""
        if len(peers.tasks) > 1:
            self._check = "clocks"
            self._clocks(peers)
        self._check = "directory"
        return self._directory(peers) if has_folder else True

    def _clocks(self, peers: Peers) -> None:
        ahead = dict(zip(peers.tasks, peers.clocks(), strict=True))
        first, last = min(ahead, key=ahead.__getitem__), max(ahead, key=ahead.__getitem__)
        apart = ahead[last] - ahead[first]
        if apart > _APART:
            self._add(
                f"{last} is {apart:.1f} s ahead of {first}; set the machines' clocks by NTP, or "
                "their logs cannot be compared",
                state=WARNING,
            )
        else:
            self._add(f"{apart * 1e3:.0f} ms apart, at most")

    def _directory(self, peers: Peers) -> bool:
        problems = dict(zip(peers.tasks, peers.check_folder(self._folder), strict=True))
        chief = peers.tasks[0]
        wrong = [f"{task} {problem}" for task, problem in problems.items() if problem]
        where = f"--checkpoint-dir {self._folder}"
        if problems[chief]:
            advice = "give a directory that the chief may write to"
            self._add(f"{where}: {'; '.join(wrong)}; {advice}", state=FAILED, exit_code=EXIT_CONFIG)
        elif wrong:
            self._add(
                f"{where}: {'; '.join(wrong)}; only the chief saves, so a job that starts again "
                "with its chief elsewhere would start from the beginning: give a directory that "
                "all machines share",
                state=WARNING,
            )
        else:
            self._add(f"{self._folder} is the same in {plural(len(problems), 'task')}")
        return not problems[chief]

    def _all_reduce(self, group: ProcessGroup) -> None:
        layout = group.layout
        if layout.workers == 1:
            return
        self._check = "all-reduce"
        seconds = []
        for turn in range(_CALLS):
            began = time.perf_counter()
            found = group.exchange(turn * layout.workers + layout.worker)
            seconds.append(time.perf_counter() - began)
            expected = [turn * layout.workers + worker for worker in range(layout.workers)]
            if found != expected:
                raise ConfigError(f"all-reduce: it returned {found}, expected {expected}")
        median = statistics.median(seconds) * 1e3
        self._add(f"{layout.workers} workers agree, {median:.1f} ms")

    def _step(self, strategy: tf.distribute.Strategy) -> None:
        self._check = "step"
        began = time.monotonic()
        loss = _fit(strategy)
        if not np.isfinite(loss):
            raise ConfigError(
                f"step: the loss is {loss} after one step; check this machine's memory and CPU"
            )
        self._add(f"loss {loss:.4g}, {time.monotonic() - began:.1f} s with compiling it")

    def _checkpoint(self, strategy: tf.distribute.Strategy, group: ProcessGroup) -> None:
        self._check = "checkpoint"
        # Only the chief's folder is used.
        place = self._folder if group.is_chief and self._folder else None
        folder = tempfile.mkdtemp(prefix=".tfdist-doctor-", dir=place)
        try:
            _fit(strategy, checkpoint_dir=folder)
            if group.is_chief and CheckpointDirectory(folder, 1).newest() is None:
                raise ConfigError("checkpoint: no checkpoint was found after saving")
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        where = "a temporary directory" if place is None else place
        self._add(f"saved in {where}" if group.is_chief else "saved by the chief")


def _fit(strategy: tf.distribute.Strategy, checkpoint_dir: str | None = None) -> float:
    """Trains a tiny model for a step; returns the loss."""
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    rows = _ROWS * strategy.num_replicas_in_sync
    x, y = np.ones((rows, 4), np.float32), np.ones((rows, 1), np.float32)
    trainer = Trainer(model, checkpoint_dir=checkpoint_dir)
    history = trainer.fit(x, y, batch_size=rows, shuffle=False, verbose=0)
    return float(history.history["loss"][-1])
