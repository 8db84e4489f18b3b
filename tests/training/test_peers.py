"""What TensorFlow says when a peer is gone, as it was seen to say it."""

import pytest
import tensorflow as tf

from tfdist.training.peers import lost_peer

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
    assert message in str(lost_peer(error(kind, text), own))


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
def test_an_error_of_ones_own_is_not_a_lost_peer(own):
    assert lost_peer(own, "worker/0") is None
