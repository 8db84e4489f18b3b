"""Every loop does all that a Trainer asks of one."""

from __future__ import annotations

import inspect

import numpy as np
import pytest
import tensorflow as tf

from tfdist.training.loops.base import Loop, plain
from tfdist.training.loops.one_device import OneDeviceLoop
from tfdist.training.loops.parameter_server import ParameterServerLoop
from tfdist.training.loops.synchronous import SynchronousLoop

LOOPS = [OneDeviceLoop, ParameterServerLoop, SynchronousLoop]


def test_the_interface_itself_cannot_be_made():
    with pytest.raises(TypeError, match="abstract"):
        Loop()


@pytest.mark.parametrize("kind", LOOPS)
def test_a_loop_has_every_method_with_the_same_arguments(kind):
    assert issubclass(kind, Loop)
    assert not inspect.isabstract(kind)
    methods = [name for name, thing in vars(Loop).items() if inspect.isfunction(thing)]
    assert len(methods) >= 15 and Loop.__abstractmethods__ <= set(methods)
    for name in methods:
        wanted = inspect.signature(getattr(Loop, name)).parameters
        assert list(inspect.signature(getattr(kind, name)).parameters) == list(wanted), name


def test_there_is_no_other_loop():
    assert set(Loop.__subclasses__()) == set(LOOPS)


def test_logs_are_numbers_of_pythons_where_they_are_one_number():
    found = plain({"a": tf.constant(0.5), "b": np.float32(2), "c": tf.constant([1.0, 2.0]), "d": 3})
    assert {name: type(found[name]) for name in "abd"} == dict.fromkeys("abd", float)
    assert (found["a"], found["b"], found["d"]) == (0.5, 2.0, 3.0)
    assert type(found["c"]) is np.ndarray
    np.testing.assert_array_equal(found["c"], np.array([1.0, 2.0], "float32"), strict=True)
