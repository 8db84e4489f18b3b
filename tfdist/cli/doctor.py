"""`tfdist doctor`: examine whether a cluster can train."""

from __future__ import annotations

import os

from tfdist.cli.arguments import Parser, seconds
from tfdist.cli.output import print_json
from tfdist.cluster import Cluster
from tfdist.doctor.finding import Finding, Findings
from tfdist.doctor.machine import examine_machine
from tfdist.errors import ConfigError
from tfdist.runtime import process_one, sigterm
from tfdist.runtime.startup import start_tensorflow
from tfdist.runtime.timeouts import STALL_VARIABLE
from tfdist.runtime.watchdog import watchdog

# Seconds for all that comes after the meeting, and in which a task that is silent counts as lost.
_MOST = 300.0
_STALL = "60"


def main(argv: list[str]) -> int:
    """Makes all checks, in each task of the cluster; returns 0, 2, or 138 for a lost task.

    Raises:
        TfdistError: A check could not be ended.
    """
    parser = Parser(
        "tfdist doctor",
        "Examine whether this task and its cluster can train, a line for each check: ok, warning "
        "or FAILED, with what to do. Run it in every task, as the training program.",
        examples=(
            "tfdist doctor",
            "tfdist launch --workers 2 tfdist doctor --checkpoint-dir runs/digits",
        ),
    )
    help = "the directory that training is to save to: is it that of all tasks?"
    parser.add_argument("--checkpoint-dir", default="", metavar="DIR", help=help)
    help = "seconds to wait for the other tasks ($TFDIST_WAIT, or 300)"
    parser.add_argument("--wait", type=seconds, metavar="S", help=help)
    parser.add_argument("--json", action="store_true", help="print JSON")
    args = parser.parse_args(argv)
    process_one.continue_in_child()
    sigterm.end_process_one()

    def say(finding: Finding) -> None:
        if not args.json:
            print(finding, flush=True)

    findings = Findings(say)
    try:
        cluster = examine_machine(findings, args.wait)
        if cluster is not None:
            os.environ.setdefault(STALL_VARIABLE, _STALL)
            with watchdog(_MOST, f"doctor: {findings.task}: the checks"):
                _examine_training(findings, cluster, args.checkpoint_dir)
    finally:
        if args.json:
            rows = [{"check": f.check, "state": f.state, "text": f.text} for f in findings.all]
            print_json({"task": findings.task, "exit_code": findings.exit_code, "findings": rows})
    return findings.exit_code


def _examine_training(findings: Findings, cluster: Cluster, checkpoint_dir: str) -> None:
    try:
        start_tensorflow()
    except ConfigError as error:
        findings.fail("tensorflow", error)
        raise
    from tfdist.doctor.training import examine_training

    examine_training(findings, cluster, checkpoint_dir)
