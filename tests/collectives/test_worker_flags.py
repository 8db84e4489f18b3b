"""A flag that any worker raises is seen on all of them after the step that it went with."""

from __future__ import annotations

import tensorflow as tf

from tfdist.collectives.worker_flags import Flag, WorkerFlags


def step(*workers):
    """What a step does: the workers' flags are added up, and all of them get the sum."""

    @tf.function(autograph=False)
    def exchange():
        total = tf.add_n([worker.own() for worker in workers])
        for worker in workers:
            worker.record(total)

    return exchange


def seen(worker):
    return [flag for flag in Flag if worker.seen(flag)]


def test_there_is_a_place_for_each_flag():
    own = WorkerFlags().own()
    assert own.dtype == tf.float32
    assert own.shape == (len(Flag),)
    assert [int(flag) for flag in Flag] == list(range(len(Flag)))


def test_a_flag_is_seen_on_all_after_the_next_step_and_not_before():
    workers = [WorkerFlags() for _ in range(3)]
    exchange = step(*workers)
    exchange()  # Traced with no flag: what is sent is read anew in each step.
    assert [seen(worker) for worker in workers] == [[], [], []]
    workers[1].set(Flag.STOP_TRAINING)
    assert seen(workers[1]) == []
    exchange()
    assert [seen(worker) for worker in workers] == [[Flag.STOP_TRAINING]] * 3
    workers[2].set(Flag.SAVE_AND_END)
    workers[0].set(Flag.STOP_TRAINING)  # Two of them have raised it now.
    exchange()
    assert [seen(worker) for worker in workers] == [list(Flag)] * 3


def test_a_lowered_flag_is_no_longer_seen_after_the_next_step():
    one, other = WorkerFlags(), WorkerFlags()
    exchange = step(one, other)
    for flag in Flag:
        one.set(flag)
    exchange()
    one.set(Flag.STOP_TRAINING, False)
    assert seen(other) == list(Flag)
    exchange()
    assert seen(other) == seen(one) == [Flag.SAVE_AND_END]


def test_a_flag_raised_twice_counts_once():
    flags = WorkerFlags()
    flags.set(Flag.SAVE_AND_END)
    flags.set(Flag.SAVE_AND_END, True)
    assert flags.own().numpy().tolist() == [1.0, 0.0]
    flags.set(Flag.SAVE_AND_END, False)
    assert flags.own().numpy().tolist() == [0.0, 0.0]


def test_cleared_flags_are_neither_seen_nor_sent_and_can_be_raised_again():
    flags = WorkerFlags()
    exchange = step(flags)
    flags.set(Flag.STOP_TRAINING)
    exchange()
    flags.clear()
    assert seen(flags) == []
    exchange()
    assert seen(flags) == []
    flags.set(Flag.STOP_TRAINING)
    exchange()
    assert seen(flags) == [Flag.STOP_TRAINING]
