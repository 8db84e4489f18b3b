"""The commands: what they print, and one line with exit code 2 for a mistake."""

import json

import pytest

from tfdist.cli import main

GOYAL = ["plan", "--per-replica-batch", "32", "--num-replicas", "256"]
GOYAL += ["--base-learning-rate", "0.1"]


def test_plan_prints_the_table_and_the_rates(capsys):
    length = ["--decay", "step", "--epochs", "90", "--num-examples", "1281167"]
    assert main([*GOYAL, *length]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "global batch     8,192 = 32 x 256 replicas"
    rates = {line.split()[0]: line.split()[-1] for line in lines if line[:10].strip().isdigit()}
    assert [rates[epoch] for epoch in ("0", "5", "30", "60", "80")] == [
        "0.1",
        "3.2",
        "0.32",
        "0.032",
        "0.0032",
    ]


def test_plan_without_a_length(capsys):
    assert main(GOYAL) == 0
    assert "3.2 = 0.1 for 256, linear" in capsys.readouterr().out


def test_plan_json_and_underscores(capsys):
    spelled = [word.replace("-", "_").replace("__", "--") for word in GOYAL]
    assert main([*spelled, "--json", "--decay", "step", "--boundaries", "10,20"]) == 0
    saved = json.loads(capsys.readouterr().out)
    assert saved["peak_learning_rate"] == pytest.approx(3.2)
    assert saved["boundaries"] == [10, 20]


RENDER = "render tfjob --workers 2 --name job --image i"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("plan", "tfdist: plan: the following arguments are required"),
        (
            " ".join(GOYAL) + " --epochs 0",
            "tfdist: plan(--epochs): 0.0 is given; allowed: a finite number above 0",
        ),
        (" ".join(GOYAL) + " --boundaries x", "tfdist: plan(--boundaries): 'x' is given"),
        ("render", "tfdist: render: no kind is given; allowed: jobset, trainjob"),
        (RENDER, "tfdist: render: no command given; add '-- COMMAND'"),
        ("render tfjob --workers 2 --name job -- x", "tfdist: render(--image): missing"),
        ("render tfjob --workers 0 --name j --image i -- x", "tfdist: render(--workers): 0"),
        (
            "render pod --workers 1 --name j -- x",
            "tfdist: render: 'pod' is given first; allowed: jobset, ",
        ),
    ],
)
def test_mistakes_are_one_line(words, message, capsys):
    assert main(words.split()) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(message)
    assert captured.err.count("\n") == 1
