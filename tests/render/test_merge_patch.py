"""A strategic merge: objects by field, lists of named things by name."""

import pytest

from tfdist.errors import ConfigError
from tfdist.render.merge_patch import merged


@pytest.mark.parametrize(
    ("base", "patch", "result"),
    [
        ({"a": 1, "b": {"c": 2}}, {"b": {"d": 3}}, {"a": 1, "b": {"c": 2, "d": 3}}),
        ({"a": 1, "b": 2}, {"b": None}, {"a": 1}),
        ({}, {"a": {"b": None, "c": 1}}, {"a": {"c": 1}}),
        (
            {"env": [{"name": "A", "value": "1"}, {"name": "B"}]},
            {"env": [{"name": "A", "value": "2"}, {"name": "C"}]},
            {"env": [{"name": "A", "value": "2"}, {"name": "B"}, {"name": "C"}]},
        ),
        (
            {"env": [{"name": "A"}, {"name": "B"}]},
            {"env": [{"name": "A", "$patch": "delete"}]},
            {"env": [{"name": "B"}]},
        ),
        (
            {"volumeMounts": [{"name": "v", "mountPath": "/a"}]},
            {"volumeMounts": [{"name": "v", "mountPath": "/b"}]},
            {
                "volumeMounts": [
                    {"name": "v", "mountPath": "/a"},
                    {"name": "v", "mountPath": "/b"},
                ]
            },
        ),
        (
            {"ports": [{"name": "tf", "containerPort": 1}]},
            {"ports": [{"name": "new", "containerPort": 1}]},
            {"ports": [{"name": "new", "containerPort": 1}]},
        ),
        ({"command": ["a", "b"]}, {"command": ["c"]}, {"command": ["c"]}),
        (
            {"tolerations": [{"key": "a"}]},
            {"tolerations": [{"key": "b"}]},
            {"tolerations": [{"key": "b"}]},
        ),
    ],
)
def test_merge(base, patch, result):
    assert merged(base, patch, "patch") == result


def test_the_base_stays():
    base = {"containers": [{"name": "a", "env": [{"name": "A"}]}]}
    merged(base, {"containers": [{"name": "a", "env": [{"name": "B"}]}]}, "patch")
    assert base == {"containers": [{"name": "a", "env": [{"name": "A"}]}]}


@pytest.mark.parametrize(
    ("patch", "said"),
    [
        ({"a": [1]}, "patch.a: [1] is a list; give an object"),
        ({"b": 1}, "patch.b: 1 is a number; give a list"),
        ({"b": [{"name": ["x"]}]}, "patch.b[0].name: ['x'] is a list; give a name"),
        ({"$patch": "replace"}, "patch.$patch: 'replace' is given"),
    ],
)
def test_what_does_not_fit_is_named(patch, said):
    with pytest.raises(ConfigError) as caught:
        merged({"a": {"x": 1}, "b": [{"name": "n"}]}, patch, "patch")
    assert str(caught.value).startswith(said)
