"""`tfdist plan` with a model described by numbers: no TensorFlow."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tfdist.cli import main

WORKED = ["plan", "--multiply-adds", "11.4e9", "--parameters", "60e6", "--epochs", "128"]
WORKED += ["--num-examples", "1200000", "--tflops", "41.58", "--utilization", "0.33"]
RATE = ["--per-replica-batch", "32", "--num-replicas", "256", "--base-learning-rate", "0.1"]


def test_the_worked_example(capsys):
    assert main(WORKED) == 0
    text = capsys.readouterr().out
    assert "10.51 EFLOP in 128 epochs: 0.122 PFLOP/s-days" in text
    assert "113.6 kFLOP a byte, of 602,112 an image" in text
    assert "1.186 EFLOP a day" in text
    assert "learning rate" not in text


def test_batch_and_rate_come_first_where_a_rate_is_given(capsys):
    assert main([*WORKED, *RATE]) == 0
    first, second = capsys.readouterr().out.split("\nmodel ")
    assert first.startswith("global batch     8,192 = 32 x 256 replicas")
    assert "EFLOP" in second
    assert main([*WORKED, *RATE, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["global_batch"] == 8192 and found["cost"]["flop"] == pytest.approx(1.050624e19)


def test_efficiency_is_predicted_for_a_link(capsys):
    options = "--link 10gbe --workers 1,8,1024 --overlap"
    assert main([*WORKED, *options.split(), "--wire-dtype", "bfloat16", "--json"]) == 0
    cost = json.loads(capsys.readouterr().out)["cost"]
    assert [step["workers"] for step in cost["steps"]] == [1, 8, 1024]
    assert cost["wire_bytes"] == 120e6
    efficiencies = [step["efficiency"] for step in cost["steps"]]
    assert efficiencies[0] == 1.0 and efficiencies == sorted(efficiencies, reverse=True)


def test_memory_says_what_would_change(capsys):
    options = ["--num-replicas", "8", "--optimizer", "adam", "--activations", "1e6"]
    assert main([*WORKED, *options]) == 0
    text = capsys.readouterr().out
    assert "weights 240 MB, gradients 240 MB, optimizer 480 MB, activations 128 MB" in text
    assert "in all with mixed_float16 1.144 GB, updates sharded over 8 668 MB" in text
    assert main([*WORKED, *options, "--sharded-updates", "--precision", "mixed_float16"]) == 0
    assert "optimizer 60 MB, activations 64 MB" in capsys.readouterr().out


def test_measured_figures_are_read(tmp_path, capsys):
    path = tmp_path / "network.json"
    path.write_text(json.dumps({"links": {"ring": {"latency": 1e-4, "bandwidth": 1e9}}}))
    assert main([*WORKED, "--network", str(path), "--workers", "2", "--step-seconds", "1"]) == 0
    assert "latency 100 µs, 1 GB/s, after the backward pass, 1 s of" in capsys.readouterr().out


def test_the_plot_is_a_picture(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    path = tmp_path / "efficiency.png"
    assert main([*WORKED, "--link", "nvlink", "--plot", str(path)]) == 0
    assert path.read_bytes().startswith(b"\x89PNG")


def test_without_matplotlib_it_is_a_line(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert main([*WORKED, "--link", "nvlink", "--plot", "x.png"]) == 2
    assert (
        capsys.readouterr().err == "tfdist: plot: needs matplotlib; pip install 'tfdist[plots]'\n"
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--tflops 3", "plan(--tflops): given without a model; add --model NAME, or"),
        ("--multiply-adds 1e9", "plan(--parameters): missing; give --multiply-adds and"),
        ("--multiply-adds 0 --parameters 1", "plan(--multiply-adds): 0.0 is given; allowed:"),
        ("--model resnet50 --parameters 1e6", "plan(--parameters): given with --model"),
        (" ".join(WORKED[1:]) + " --plot x.png", "plan(--plot): given without a link"),
        (" ".join(WORKED[1:5]) + " --link nvlink", "plan(--link): given without the time of a"),
        (" ".join(WORKED[1:]) + " --utilization 1.5", "plan(--utilization): 1.5 is given"),
        (" ".join(WORKED[1:]) + " --latency 1e-5", "plan(--bandwidth): missing; --latency and"),
        (" ".join(WORKED[1:]) + " --link nvlink --network x", "plan(--network): given with"),
        (" ".join(WORKED[1:]) + " --transport ring", "plan(--transport): given without"),
        (
            " ".join(WORKED[1:]) + " --workers 1,x",
            "plan(--workers): 'x' is given; allowed: ",
        ),
        (" ".join(WORKED[1:]) + " --workers 0", "plan(--workers): 0 is given; allowed: a whole"),
        (" ".join(WORKED[1:]) + " --link wifi", "plan(--link): 'wifi' is given; "),
        (" ".join(WORKED[1:]) + " --num-replicas 0", "plan(--num-replicas): 0 is given"),
        (" ".join(WORKED[1:]) + " --epochs -1", "plan(--epochs): -1.0 is given"),
    ],
)
def test_mistakes_are_one_line(words, message, capsys):
    assert main(["plan", *words.split()]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"tfdist: {message}")
    assert captured.err.count("\n") == 1


def test_tensorflow_is_not_loaded_for_numbers():
    program = (
        f"import sys; from tfdist.cli import main; main({WORKED!r}); "
        "print('loaded', *sorted({'tensorflow', 'keras', 'matplotlib'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "loaded"
