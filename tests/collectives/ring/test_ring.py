"""Sums, gathers and broadcasts are what NumPy computes in the order that is written down."""

from __future__ import annotations

import ctypes
import os
import socket
import struct
import sys
import threading
import time

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfdist.collectives.ring import memory, monitor
from tfdist.collectives.ring import ring as ring_module
from tfdist.collectives.ring.failure import RingError
from tfdist.runtime import heartbeat
from tfdist.runtime.heartbeat import HeartbeatWriter

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
TYPES = ("float32", "float64", "float16", "int32", "int64", "uint8", "complex64", BFLOAT16)
SIZES = st.one_of(
    st.integers(0, 40), st.integers(0, 20_000), st.sampled_from([262_144, 600_001, 1_100_003])
)


def numbers(size, dtype, count, seed):
    generator = np.random.default_rng(seed)
    dtype = np.dtype(dtype)
    if dtype.kind in "iu":
        return [generator.integers(0, 100, size).astype(dtype) for _ in range(count)]
    return [generator.normal(size=size).astype(dtype) for _ in range(count)]


def expected(ring, arrays, wire=None):
    """The sum in the documented order, element by element of each segment."""
    size, like = len(arrays), arrays[0]
    as_sent = (lambda x: x) if wire is None else (lambda x: x.astype(wire).astype(x.dtype))
    if like.nbytes * size <= ring_module.SMALL_BYTES:
        total = as_sent(arrays[0])
        for array in arrays[1:]:
            total = total + as_sent(array)
        return as_sent(total)
    result = np.empty_like(like)
    for owner in range(size):
        at = ring.segment(like.size, like.itemsize, owner)
        total = arrays[(owner + 1) % size][at]
        for behind in range(2, size + 1):
            total = as_sent(total) + arrays[(owner + behind) % size][at]
        result[at] = as_sent(total)
    return result


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 5), SIZES, st.sampled_from(TYPES), st.integers(0, 1000))
def test_a_sum_has_the_documented_order(rings, count, size, dtype, seed):
    workers = rings[count]
    arrays = numbers(size, dtype, count, seed)
    want = expected(workers.rings[0], arrays)
    sums = [array.copy() for array in arrays]
    workers.each(lambda ring: ring.all_reduce(sums[ring.rank]))
    assert all(total.tobytes() == want.tobytes() for total in sums)


def in_common(ring, array):
    """A copy of an array in memory that the other workers can map."""
    memory = ring.common.allocate(array.nbytes + 64)[64:]
    memory[:] = array.view(np.uint8)
    return memory.view(array.dtype)


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 5), SIZES, st.sampled_from(TYPES), st.integers(0, 1000))
def test_a_sum_in_common_memory_has_the_same_bits(rings_of_a_host, count, size, dtype, seed):
    workers = rings_of_a_host[count]
    arrays = numbers(max(size, 1), dtype, count, seed)
    want = expected(workers.rings[0], arrays)

    def add_up(ring):
        total = in_common(ring, arrays[ring.rank])
        ring.all_reduce(total, in_memory=True)
        return total

    assert all(total.tobytes() == want.tobytes() for total in workers.each(add_up))


def test_large_sums_go_through_common_memory(rings_of_a_host, monkeypatch):
    used = []
    real = ring_module.Ring._sum_in_common
    monkeypatch.setattr(
        ring_module.Ring,
        "_sum_in_common",
        lambda self, *rest: (used.append(self.rank), real(self, *rest)),
    )
    workers = rings_of_a_host[3]
    arrays = numbers(100_000, "float32", 3, 1)
    sums = workers.each(lambda ring: in_common(ring, arrays[ring.rank]))
    workers.each(lambda ring: ring.all_reduce(sums[ring.rank], in_memory=True))
    assert sorted(used) == [0, 1, 2]
    # Where one worker's array is not in it, all send theirs.
    sums[1] = arrays[1].copy()
    sums[0][:], sums[2][:] = arrays[0], arrays[2]
    workers.each(lambda ring: ring.all_reduce(sums[ring.rank], in_memory=True))
    assert len(used) == 3
    assert all(total.tobytes() == sums[0].tobytes() for total in sums)


def test_memory_that_a_worker_frees_is_not_kept_by_others(rings_of_a_host):
    workers = rings_of_a_host[2]
    for seed in range(40):
        arrays = numbers(50_000, "float32", 2, seed)

        def add_up(ring, arrays=arrays):
            ring.all_reduce(in_common(ring, arrays[ring.rank]), in_memory=True)

        workers.each(add_up)
    for ring in workers.rings:
        assert not ring.common._pieces
        assert len(ring.common._mapped[1 - ring.rank]) == 1


def test_workers_of_two_hosts_have_nothing_in_common(workers, monkeypatch):
    # The same number is another process there.
    monkeypatch.setattr(memory.CommonMemory, "place", lambda self, array: elsewhere)
    elsewhere = memory._PLACE.pack(os.getpid(), 1, 2, 1, 32, 0)
    made = workers(2)
    assert made.each(lambda ring: ring.share_memory()) == [False, False]
    assert [ring.common for ring in made.rings] == [None, None]


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 5), SIZES, st.sampled_from(["float16", BFLOAT16]), st.integers(0, 1000))
def test_a_sum_in_a_narrow_type_is_the_same_everywhere(rings, count, size, wire, seed):
    workers = rings[count]
    arrays = numbers(size, "float32", count, seed)
    want = expected(workers.rings[0], arrays, wire)
    sums = [array.copy() for array in arrays]
    workers.each(lambda ring: ring.all_reduce(sums[ring.rank], wire))
    assert all(total.tobytes() == want.tobytes() for total in sums)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 5), SIZES, st.integers(0, 1000))
def test_a_scattered_sum_is_a_part_of_the_whole(rings, count, size, seed):
    workers = rings[count]
    arrays = numbers(size, "float64", count, seed)
    total = arrays[0] * 0
    for array in arrays:
        total = total + array
    parts = [array.copy() for array in arrays]
    found = workers.each(lambda ring: ring.reduce_scatter(parts[ring.rank]))
    np.testing.assert_allclose(np.concatenate(found), total, rtol=1e-12, atol=1e-12)


@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 5).flatmap(lambda n: st.lists(SIZES, min_size=n, max_size=n)),
    st.sampled_from([*TYPES, "bool"]),
)
def test_a_gather_takes_any_lengths(rings, sizes, dtype):
    workers = rings[len(sizes)]
    arrays = [numbers(size, "uint8", 1, rank)[0].astype(dtype) for rank, size in enumerate(sizes)]
    for found in workers.each(lambda ring: ring.all_gather(arrays[ring.rank])):
        assert [x.tobytes() for x in found] == [x.tobytes() for x in arrays]
        assert all(x.dtype == np.dtype(dtype) for x in found)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 5), st.integers(0, 4), SIZES)
def test_a_broadcast_comes_from_its_root(rings, count, root, size):
    workers, root = rings[count], root % count
    arrays = numbers(size, "int64", count, 0)
    want = arrays[root].copy()
    workers.each(lambda ring: ring.broadcast(arrays[ring.rank], root))
    assert all(np.array_equal(array, want) for array in arrays)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 5), st.integers(0, 4), SIZES)
def test_one_worker_gathers(rings, count, root, size):
    workers, root = rings[count], root % count
    arrays = numbers(size, "int64", count, 0)
    found = workers.each(lambda ring: ring.gather(arrays[ring.rank], root))
    assert [len(each) for each in found] == [count if rank == root else 0 for rank in range(count)]
    for got, want in zip(found[root], arrays, strict=True):
        assert np.array_equal(got, want)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 5), st.integers(0, 4), SIZES)
def test_one_worker_scatters(rings, count, root, size):
    workers, root = rings[count], root % count
    (whole,) = numbers(count * size, "float32", 1, 0)
    pieces = [np.zeros(size, np.float32) for _ in range(count)]
    workers.each(
        lambda ring: ring.scatter(pieces[ring.rank], whole if ring.rank == root else None, root)
    )
    assert np.array_equal(np.concatenate(pieces), whole)


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 5), SIZES, st.sampled_from([None, "float16"]))
def test_what_is_checked_is_the_same(rings, count, size, wire):
    workers = rings[count]
    workers.each(lambda ring: ring.check_all(True))
    arrays = numbers(size, "float32", count, 1)
    want = expected(workers.rings[0], arrays, wire)
    sums = [array.copy() for array in arrays]
    workers.each(lambda ring: ring.all_reduce(sums[ring.rank], wire))
    assert all(total.tobytes() == want.tobytes() for total in sums)
    for found in workers.each(lambda ring: ring.all_gather(arrays[ring.rank])):
        assert [x.tobytes() for x in found] == [x.tobytes() for x in arrays]
    workers.each(lambda ring: ring.broadcast(arrays[ring.rank], 1))
    assert all(array.tobytes() == arrays[1].tobytes() for array in arrays)
    gathered = workers.each(lambda ring: ring.gather(arrays[ring.rank]))[0]
    assert [x.tobytes() for x in gathered] == [x.tobytes() for x in arrays]
    workers.each(lambda ring: ring.check_all(False))


def test_sums_that_overflow_are_infinite_and_no_warning(rings):
    for size in (4, 100_000):
        arrays = [np.full(size, 3e38, np.float32) for _ in range(2)]
        rings[2].each(lambda ring, arrays=arrays: ring.all_reduce(arrays[ring.rank]))
        assert np.isinf(arrays[0]).all()
        narrow = [np.full(size, 6e4, np.float32) for _ in range(2)]
        narrow[1][0] = np.nan
        rings[2].each(lambda ring, a=narrow: ring.all_reduce(a[ring.rank], np.float16))
        assert np.isnan(narrow[0][0]) and np.isinf(narrow[0][1:]).all()


def test_calls_of_several_threads_wait_for_each_other(workers):
    (ring,) = workers(1).rings
    ring.all_reduce(np.ones(3))
    two = workers(2)
    total = [np.ones(50_000) for _ in range(2)]
    two.each(lambda ring: [ring.all_reduce(total[ring.rank]) for _ in range(20)])
    assert (total[0] == 2.0**20).all()


@pytest.mark.parametrize(
    "arguments",
    [(np.ones(4), np.float16), (np.ones(4, np.float32), np.int16)],
    ids=["of float64", "integers"],
)
def test_what_cannot_travel_in_a_type_is_refused(workers, arguments):
    with pytest.raises(ValueError, match="cannot travel as"):
        workers(2).rings[0].all_reduce(*arguments)


# ---- when something goes wrong ----


def cut(ring):
    """Ends a worker's connections as the kernel does with those of a process that is killed."""
    watch = ring._monitor
    watch.closed = True
    for connection in (*watch._data, *(side.news for side in watch._sides)):
        connection.shutdown(2)
        connection.close()
    watch._wake_up()
    watch._thread.join()
    watch._wake.close()
    watch._woken.close()


@pytest.mark.parametrize("count", [2, 3, 5])
@pytest.mark.parametrize("size", [10, 3_000_000])
def test_the_worker_that_was_lost_is_named_by_all(workers, count, size):
    ring = workers(count)
    lost = count - 1
    waiting = ring.start(lambda r: r.all_reduce(np.ones(size, np.float32)), range(lost))
    time.sleep(0.2)
    at = time.monotonic()
    cut(ring.rings[lost])
    for future in waiting:
        with pytest.raises(RingError, match=rf"tfdist ring: lost worker/{lost} \("):
            future.result(10)
    assert time.monotonic() - at < 2
    for survivor in ring.rings[:lost]:  # And no later call gets anywhere.
        with pytest.raises(RingError, match=f"lost worker/{lost}"):
            survivor.broadcast(np.ones(2))


def test_a_loss_outside_of_a_call_is_seen_by_the_next(workers):
    ring = workers(2)
    cut(ring.rings[1])
    time.sleep(0.2)
    with pytest.raises(RingError, match="lost worker/1"):
        ring.rings[0].all_reduce(np.ones(4))


def test_a_silent_worker_is_named_after_a_while(workers, caplog):
    # The others look every two seconds, and give those who wait themselves the time to say so.
    ring = workers(3, warn_seconds=2.5, stall_seconds=5)
    futures = ring.start(lambda r: r.all_reduce(np.ones(100_000)), [0, 1])
    for future in futures:
        with pytest.raises(
            RingError, match=r"lost worker/2 \(it is running but has not responded for \d+ s\)"
        ):
            future.result(20)


def test_workers_at_different_calls_are_told_so(workers):
    ring = workers(3)

    def act(r):
        if r.rank == 1:
            return r.all_gather(np.ones(3))
        return r.all_reduce(np.ones(3))

    for future in ring.start(act):
        with pytest.raises(
            RingError, match=r"tfdist ring: mismatch .*gathers 3 float64 in collective 1"
        ):
            future.result(10)


def test_arrays_of_different_sizes_are_not_added(workers):
    ring = workers(2)
    for future in ring.start(lambda r: r.all_reduce(np.ones(70_000 + r.rank))):
        with pytest.raises(RingError, match="mismatch .*70001 float64"):
            future.result(10)


def test_one_that_has_left_is_no_loss(workers):
    ring = workers(2)
    ring.each(lambda r: r.all_reduce(np.ones(3)))
    ring.rings[1].close()
    with pytest.raises(RingError, match=r"tfdist ring: exited worker/1 \(it has finished"):
        ring.rings[0].all_reduce(np.ones(3))


def test_one_that_fails_says_so_to_all(workers):
    ring = workers(4)
    futures = ring.start(lambda r: r.all_reduce(np.ones(3)), [0, 1, 3])
    ring.rings[2].abort("its own\nfault")
    for future in futures:
        with pytest.raises(RingError, match=r"lost worker/2 \(its own\?fault\)"):
            future.result(10)


def lose_large_packets(connection):
    """Makes the kernel drop what comes in more than 500 bytes, as a smaller MTU on the way does."""
    program = [(0x80, 0, 0, 0), (0x25, 0, 1, 500), (0x06, 0, 0, 0), (0x06, 0, 0, 0xFFFFFFFF)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in program))
    attach = struct.pack("HP", len(program), ctypes.addressof(code))
    connection.setsockopt(socket.SOL_SOCKET, 26, attach)  # SO_ATTACH_FILTER


@pytest.mark.skipif(sys.platform != "linux", reason="what the kernel tells is Linux's own")
def test_data_that_never_arrive_are_no_endless_wait(workers, monkeypatch):
    monkeypatch.setattr(monitor, "SILENCE", 2)
    ring = workers(2)
    ring.each(lambda r: r.all_reduce(np.ones(3)))
    lose_large_packets(ring.rings[1]._monitor._data[1])
    for future in ring.start(lambda r: r.all_reduce(np.ones(300_000))):
        with pytest.raises(RingError, match="worker/1 .*no data for 2 s; .* compare the MTU"):
            future.result(30)


def test_one_that_reads_nothing_for_long_is_waited_for(workers, monkeypatch):
    """It may compute, or save; its machine answers that there is no room."""
    monkeypatch.setattr(monitor, "SILENCE", 1)
    ring = workers(2)
    sums = [np.ones(8_000_000), np.ones(8_000_000)]
    (early,) = ring.start(lambda r: r.all_reduce(sums[0]), [0])
    time.sleep(4)
    (late,) = ring.start(lambda r: r.all_reduce(sums[1]), [1])
    early.result(30), late.result(30)
    assert sums[0][-1] == sums[1][0] == 2.0


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize(
    ("size", "flips"),
    # In a header, in a small message and its checksum; in the first half of a large sum, where it
    # would be added, and in the second, where it would be passed on.
    [(10, 3), (10, 25), (10, 61), (3_000_000, 1_000_000), (3_000_000, 8_200_000)],
)
def test_a_flipped_bit_is_not_used_and_both_workers_are_named(workers, count, size, flips):
    ring = workers(count, flips=flips)
    ring.each(lambda r: r.check_all(True))
    arrays = numbers(size, "float32", count, 1)
    want = expected(ring.rings[0], arrays)
    futures = ring.start(lambda r: r.all_reduce(arrays[r.rank]))
    said = r"damaged worker/0 \(worker/1 received other bytes than worker/0 sent, in collective 1\)"
    with pytest.raises(RingError, match=said):
        futures[1].result(10)
    for rank in {*range(count)} - {1}:
        try:
            futures[rank].result(10)
        except RingError as error:
            assert "worker/1 received other bytes than worker/0 sent" in str(error)
        else:  # It had what it needed before the bit was flipped.
            assert arrays[rank].tobytes() == want.tobytes()
    with pytest.raises(RingError, match=said):
        ring.rings[0].all_reduce(np.ones(2))


def test_an_interrupt_ends_a_call(workers):
    ring = workers(2)
    (future,) = ring.start(lambda r: r.all_reduce(np.ones(3)), [0])
    time.sleep(0.1)
    ring.rings[0].interrupt()
    with pytest.raises(RingError, match="interrupted worker/"):
        future.result(5)


def test_an_interrupt_between_calls_is_left_to_the_main_thread(workers):
    ring = workers(2)
    ring.rings[0].interrupt()
    ring.each(lambda r: r.all_reduce(np.ones(3)))


def test_one_that_waits_records_it_for_the_launcher(workers, tmp_path, monkeypatch):
    path = str(tmp_path / "beat")
    monkeypatch.setenv("TFDIST_HEARTBEAT", path)
    HeartbeatWriter().write("training")
    ring = workers(2)
    (early,) = ring.start(lambda r: r.all_reduce(np.ones(3)), [0])
    end = time.monotonic() + 30
    while not heartbeat.read(path).waits:
        assert time.monotonic() < end
        time.sleep(0.05)
    (late,) = ring.start(lambda r: r.all_reduce(np.ones(3)), [1])
    early.result(10), late.result(10)
    while heartbeat.read(path).waits:
        assert time.monotonic() < end
        time.sleep(0.05)


def test_no_thread_is_left(workers):
    before = threading.active_count()
    from tests.collectives.ring.conftest import Workers

    ring = Workers(3)
    ring.close()
    assert threading.active_count() <= before
