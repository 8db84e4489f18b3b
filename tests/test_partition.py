"""One division of rows: nothing lost, nothing twice, the same for replicas as for workers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tfdist.partition import part


@given(st.integers(0, 300), st.integers(1, 20))
def test_parts_follow_each_other_and_differ_by_one(total, parts):
    ranges = [part(total, parts, index) for index in range(parts)]
    assert [start for start, _ in ranges] == [0, *(stop for _, stop in ranges[:-1])]
    assert ranges[-1][1] == total
    sizes = [stop - start for start, stop in ranges]
    assert max(sizes) - min(sizes) <= 1


@given(st.integers(0, 300), st.integers(1, 6), st.integers(1, 6))
def test_a_workers_part_is_that_of_its_replicas(total, workers, replicas):
    for worker in range(workers):
        first = worker * replicas
        own = [part(total, workers * replicas, first + i) for i in range(replicas)]
        assert part(total, workers, worker) == (own[0][0], own[-1][1])
        assert part(total, workers * replicas, first, replicas) == (own[0][0], own[-1][1])
