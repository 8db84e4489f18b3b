"""What TensorFlow says when a peer is gone, as it was seen to say it."""

import pytest
import tensorflow as tf

from tfdist.collectives.peer_errors import peers_error
from tfdist.collectives.ring.failure import RingError
from tfdist.errors import OutOfStepError, PeerError

UNHEALTHY = """Graph execution error:

Detected at node while/CollectiveReduceV2 defined at (most recent call last):
  File "job.py", line 22, in <module>

Collective ops is aborted by: Error reported from /job:worker/task:1: The following tasks are \
unhealthy (stopped sending heartbeats):
/job:worker/replica:0/task:1
The tasks have crashed. Check the task logs for an earlier error, or scheduler events to debug.
The error could be from a previous operation. Restart your program to reset.
\t [[{{node while/CollectiveReduceV2}}]] [Op:__inference__train_elements_1383]"""
RESET = """Graph execution error:

Collective ops is aborted by: recvmsg:Connection reset by peer
Additional GRPC error information from remote target /job:worker/replica:0/task:0 while calling \
/tensorflow.WorkerService/CompleteInstance:
:UNKNOWN:Error received from peer  {grpc_status:14, grpc_message:"recvmsg:Connection reset by peer"}
The error could be from a previous operation. Restart your program to reset."""
ELSEWHERE = """Collective ops is aborted by: Input to reshape is a tensor with 3 values
Additional GRPC error information from remote target /job:worker/replica:0/task:2 while calling x"""

MISMATCH = """Graph execution error:

Collective instance 119 expected type 0 and data_type 9 but got type 0 and data_type 1
Additional GRPC error information from remote target /job:worker/replica:0/task:0 while calling x
The error could be from a previous operation. Restart your program to reset.
\t [[{{node CollectiveReduceV2}}]]"""
SHAPES = """Collective ops is aborted by: Shape mismatch in the collective instance 5. Op at \
device /job:worker/replica:0/task:1/device:CPU:0 expected shape [2] but another member in the \
group expected shape [4]. This is likely due to different input shapes at different members of \
the collective op."""


def error(kind, text):
    return kind(None, None, text)


@pytest.mark.parametrize(
    ("kind", "text", "own", "message"),
    [
        (
            tf.errors.UnavailableError,
            UNHEALTHY,
            "worker/0",
            "worker/0: lost worker/1 (it stopped sending heartbeats);",
        ),
        (
            tf.errors.UnavailableError,
            RESET,
            "worker/1",
            "worker/1: lost worker/0 (recvmsg:Connection reset by peer);",
        ),
        (
            tf.errors.InvalidArgumentError,
            ELSEWHERE,
            "worker/0",
            "worker/0: lost worker/2 (Input to reshape is a tensor with 3 values);",
        ),
        (tf.errors.UnavailableError, "Socket closed", "chief/0", "lost a task of the cluster"),
    ],
)
def test_the_peer_is_named(kind, text, own, message):
    assert message in str(peers_error(error(kind, text), own))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (MISMATCH, "Collective instance 119 expected type 0"),
        (SHAPES, "Shape mismatch in the collective instance 5"),
    ],
    ids=["types", "shapes"],
)
@pytest.mark.parametrize("kind", [tf.errors.InternalError, tf.errors.InvalidArgumentError])
def test_a_peer_that_is_elsewhere_is_not_lost(kind, text, reason):
    found = peers_error(error(kind, text), "worker/0")
    assert isinstance(found, OutOfStepError)
    assert f"worker/0: the workers do not make the same calls ({reason}" in str(found)


@pytest.mark.parametrize(
    "own",
    [
        error(tf.errors.InvalidArgumentError, "labels out of range"),
        error(
            tf.errors.InvalidArgumentError,
            "2 root error(s) found.\n (0) bad input\n (1) Collective ops is aborted by: bad input",
        ),
        ValueError("Collective ops is aborted by: someone"),
    ],
    ids=["alone", "with others", "not TensorFlow's"],
)
def test_an_error_of_ones_own_is_not_a_peers_error(own):
    assert peers_error(own, "worker/0") is None


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        ("lost worker/1 (it closed the connection)", PeerError, "lost worker/1 (it closed the"),
        (
            "mismatch worker/1 (worker/1 sums 3)",
            OutOfStepError,
            "the same calls (worker/1 sums 3);",
        ),
        (
            "exited worker/1 (it has left)",
            OutOfStepError,
            "the same calls (worker/1: it has left);",
        ),
        ("interrupted worker/1 (by a signal)", PeerError, "lost worker/1 (by a signal);"),
        ("lost worker/0 (bad input)", PeerError, "worker/0: has left the other workers (bad inp"),
    ],
)
def test_the_ring_says_who(text, kind, message):
    text = f"tfdist ring: {text}"
    in_a_step = (
        f"RingError: {text}\nTraceback (most recent call last):\n\n  File x\n [[{{PyFunc}}]]"
    )
    for caught in (RingError(text), error(tf.errors.UnknownError, in_a_step)):
        found = peers_error(caught, "worker/0")
        assert type(found) is kind and message in str(found)


def test_an_interrupt_of_ones_own_is_no_peers():
    assert peers_error(RingError("tfdist ring: interrupted worker/0 (by)"), "worker/0") is None
