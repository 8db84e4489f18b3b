"""TensorFlow's log lines are kept from the terminal; its warnings never are."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from tfdist.launcher.outlet import LogFile, Outlet
from tfdist.launcher.output import TaskOutput, is_tf_log_line

# As TensorFlow 2.21 prints them here.
TF_LOG_LINES = [
    "WARNING: All log messages before absl::InitializeLog() is called are written to STDERR",
    "I0000 00:00:1795420471.663996   13952 port.cc:153] oneDNN custom operations are on.",
    "I0000 00:00:1795420476.551412   14102 coordination_service.h:529] /job:worker has connected",
    "To enable the following instructions: AVX2 AVX512F FMA, in other operations, rebuild",
    "E0000 00:00:1795420475.967603   13951 cuda_platform.cc:52] failed call to cuInit: INTERNAL",
    "2026-11-23 07:53:55.123456: I tensorflow/core/util/port.cc:153] oneDNN custom operations",
    "/job:worker/replica:0/task:1",
]
SAID = [
    "E0000 00:00:1795420475.967603   13951 grpc_client.cc:52] connection refused",
    "W0000 00:00:1795420475.967603   13951 allocator.cc:83] Allocation exceeds 10% of memory",
    "I1123 07:56:43.123456 139872 mine.py:12] my own line, by absl's logging",
    "2026-11-23 07:53:55.123456: W tensorflow/core/framework/op_kernel.cc:1] OP_REQUIRES failed",
    "I0000 of my own",
    "error at /job:worker/replica:0/task:1",
    "",
]


@pytest.mark.parametrize("line", TF_LOG_LINES)
def test_noise(line: str) -> None:
    assert is_tf_log_line(line)


@pytest.mark.parametrize("line", SAID)
def test_what_is_said(line: str) -> None:
    assert not is_tf_log_line(line)


@pytest.mark.parametrize("level", ["0", "2"])
def test_it_goes_to_the_log_alone_unless_it_is_asked_for(
    level: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", level)
    stream, log = io.StringIO(), tmp_path / "log"
    text = "\n".join([*TF_LOG_LINES, *SAID]) + "\n"
    with log.open("wb") as file:
        output = TaskOutput("ps/0", 4, Outlet(stream, "stdout"), LogFile(file, print))
        output.feed(text.encode(), final=True)
    shown = [line.removeprefix("ps/0 |").strip() for line in stream.getvalue().splitlines()]
    assert shown == ([*TF_LOG_LINES, *SAID] if level == "0" else SAID)
    assert list(output.tail)[0] == (TF_LOG_LINES if level == "0" else SAID)[0]
    assert log.read_text() == text
