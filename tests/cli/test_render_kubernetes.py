"""`tfdist render` for Kubernetes: flags, files, and one line with exit code 2 for a mistake."""

import subprocess
import sys

import pytest
import yaml

from tfdist.cli import main

JOB = ["--workers", "2", "--name", "job", "--image", "i"]
TRAIN = ["--", "tfdist", "train"]


def job(capsys, *flags, kind="tfjob", command=TRAIN):
    assert main(["render", kind, *JOB, *flags, *command]) == 0
    *_, found = yaml.safe_load_all(capsys.readouterr().out)
    return found


def worker(found):
    return found["spec"]["tfReplicaSpecs"]["Worker"]["template"]


def test_flags(capsys):
    found = job(
        capsys,
        *("--label", "team=x", "--label", "a=b", "--queue", "q", "--gang", "volcano"),
        *("--deadline", "60", "--ttl", "0", "--env", "A=b=c", "--env-from", "configmap/words"),
        *("--volume", "runs:/runs", "--volume", "secret/k:/k:ro", "--fs-group", "1000"),
        *("--gpus-per-worker", "1", "--gpu-resource", "amd.com/gpu", "--shared-memory", "2Gi"),
        *("--node-selector", "disk=ssd", "--priority-class", "high"),
        *("--toleration", "gpu:NoSchedule", "--toleration", "a=b", "--toleration", "c"),
        *("--service-account", "me", "--pull-secret", "p1", "--pull-secret", "p2"),
    )
    assert found["metadata"]["labels"] == {
        "team": "x",
        "a": "b",
        "kueue.x-k8s.io/queue-name": "q",
    }
    policy = found["spec"]["runPolicy"]
    assert (policy["activeDeadlineSeconds"], policy["ttlSecondsAfterFinished"]) == (60, 0)
    pod = worker(found)["spec"]
    assert pod["nodeSelector"] == {"disk": "ssd"}
    assert pod["priorityClassName"] == "high" and pod["serviceAccountName"] == "me"
    assert pod["schedulerName"] == "volcano"
    assert pod["imagePullSecrets"] == [{"name": "p1"}, {"name": "p2"}]
    assert pod["securityContext"]["fsGroup"] == 1000
    assert pod["tolerations"] == [
        {"key": "gpu", "operator": "Exists", "effect": "NoSchedule"},
        {"key": "a", "operator": "Equal", "value": "b"},
        {"key": "c", "operator": "Exists"},
    ]
    (container,) = pod["containers"]
    assert {"name": "A", "value": "b=c"} in container["env"]
    assert container["envFrom"] == [{"configMapRef": {"name": "words"}}]
    assert container["resources"]["limits"]["amd.com/gpu"] == 1
    assert len(container["volumeMounts"]) == len(pod["volumes"]) == 3


@pytest.mark.parametrize(("kind", "told"), [("tfjob", 1), ("jobset", 0), ("trainjob", 0)])
def test_a_queue_that_kueue_may_not_have_for_the_kind_is_told(capsys, tmp_path, kind, told):
    (tmp_path / "values.yaml").write_text("queue: team")
    assert main(["render", kind, *JOB, "--values", str(tmp_path / "values.yaml"), *TRAIN]) == 0
    written = capsys.readouterr()
    said = "tfdist: render(--queue): from Kueue 0.19 on, a TFJob starts without team unless Kueue's"
    assert written.err.startswith(said) == told and written.err.count("\n") == told
    assert ("has kubeflow.org/tfjob in integrations.frameworks" in written.out) == told
    assert main(["render", kind, *JOB, *TRAIN]) == 0
    assert capsys.readouterr().err == ""


def test_values_flags_and_patches(capsys, tmp_path):
    values, patch = tmp_path / "values.yaml", tmp_path / "patch.yaml"
    values.write_text("queue: theirs\nlabels: {a: '1'}\nvolumes: ['data:/data']\n")
    patch.write_text("spec: {dnsPolicy: None}\n")
    flags = ["--values", str(values), "--patch", str(patch), "--queue", "mine", "--label", "b=2"]
    found = job(capsys, *flags, "--volume", "runs:/runs")
    labels = found["metadata"]["labels"]
    assert labels == {"a": "1", "b": "2", "kueue.x-k8s.io/queue-name": "mine"}
    pod = worker(found)["spec"]
    assert [one["name"] for one in pod["volumes"]] == ["claim-data", "claim-runs"]
    assert pod["dnsPolicy"] == "None"


def test_a_command_of_odd_characters_stays_a_comment(capsys):
    word = "a\u2028kind: Evil\x85b: \x1bc\rd: 1"
    assert main(["render", "jobset", *JOB, "--", "x", word]) == 0
    made = list(yaml.safe_load_all(capsys.readouterr().out))
    assert [one["kind"] for one in made] == ["NetworkPolicy", "Secret", "JobSet"]
    (one,) = made[-1]["spec"]["replicatedJobs"]
    (container,) = one["template"]["spec"]["template"]["spec"]["containers"]
    assert container["command"] == ["x", word]


def test_variables_that_kubernetes_is_not_to_fill_in_are_told(capsys):
    assert main(["render", "jobset", *JOB, "--", "x", "$(POD_IP)"]) == 0
    told = capsys.readouterr()
    assert told.err.startswith("tfdist: render(--expand): not given for '$(POD_IP)', which the ")
    assert "- $$(POD_IP)\n" in told.out
    given = ["--env", "LEVEL=info", "--expand", "LEVEL", "--", "x", "--level=$LEVEL"]
    assert main(["render", "jobset", *JOB, *given]) == 0
    told = capsys.readouterr()
    assert told.err == "" and "- --level=$(LEVEL)\n" in told.out


def test_a_command_of_several_lines_stays_a_comment(capsys):
    command = ["--", "python", "-c", "import os\nprint(1)"]
    assert main(["render", "jobset", *JOB, *command]) == 0
    text = capsys.readouterr().out
    assert "\n# print(1)'\n" in text.partition("metadata")[0]
    *_, found = yaml.safe_load_all(text)
    (one,) = found["spec"]["replicatedJobs"]
    assert one["template"]["spec"]["template"]["spec"]["containers"][0]["command"] == command[1:]


def test_a_program_may_call_its_strategies_what_it_likes(capsys):
    job(capsys, command=["--", "python", "train.py", "--strategy", "mirrored"])


def test_a_runtime_needs_neither_workers_nor_a_command(capsys):
    assert main(["render", "runtime", "--name", "tfdist", "--image", "i"]) == 0
    (found,) = yaml.safe_load_all(capsys.readouterr().out)
    assert found["kind"] == "ClusterTrainingRuntime"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("tfjob --name j --image i -- x", "render(--workers): missing"),
        ("tfjob --workers 1 --name j -- x", "render(--image): missing; a tfjob runs in a"),
        (f"tfjob {' '.join(JOB)} --label x -- x", "render tfjob: argument --label: 'x' is"),
        (f"tfjob {' '.join(JOB)} --label x=a/b -- x", "render(--label).x: 'a/b' is not a label"),
        (f"tfjob {' '.join(JOB)} --env TF_CONFIG=x -- x", "render(--env).TF_CONFIG: tells a"),
        (f"tfjob {' '.join(JOB)} --env-from x -- x", "render tfjob: argument --env-from: 'x' is"),
        (f"tfjob {' '.join(JOB)} --volume runs -- x", "render(--volume)[0]: 'runs' is not like"),
        (f"tfjob {' '.join(JOB)} --deadline 0 -- x", "render(--deadline): 0 is given"),
        (f"tfjob {' '.join(JOB)} --deadline 1h -- x", "render tfjob: argument --deadline: '1h' is"),
        (f"tfjob {' '.join(JOB)} --toleration a:x -- x", "render(--toleration)[0].effect: 'x'"),
        (f"tfjob {' '.join(JOB)} --values /absent -- x", "/absent: cannot be read"),
        (f"tfjob {' '.join(JOB)} --patch /absent -- x", "/absent: cannot be read"),
        (f"tfjob {' '.join(JOB)} --runtime r -- x", "render(--runtime): 'r' is given; only a"),
        (f"jobset {' '.join(JOB)} --gang coscheduling -- x", "render(--gang): coscheduling needs"),
        (
            f"jobset {' '.join(JOB)} -- tfdist train --strategy parameter_server",
            "render(--ps): 0 is given; parameter_server needs 1 or more",
        ),
        (
            f"jobset {' '.join(JOB)} -- tfdist train --strategy=parameter_server",
            "render(--ps): 0 is given; parameter_server needs 1 or more",
        ),
        (
            f"jobset {' '.join(JOB)} --ps 1 -- tfdist train --strategy multi_worker_mirrored",
            "render(--ps): 1 is given; multi_worker_mirrored has none",
        ),
        (
            f"jobset {' '.join(JOB)} -- tfdist train --strategy mirrored",
            "render(--workers): 2 is given; mirrored runs in 1 process",
        ),
        (f"--name j tfjob {' '.join(JOB)} -- x", "render: '--name' is given first"),
    ],
)
def test_mistakes_are_one_line_and_nothing_is_written(flags, message, capsys):
    assert main(["render", *flags.split()]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"tfdist: {message}")
    assert captured.err.count("\n") == 1


def test_tensorflow_is_not_loaded():
    program = (
        "import sys; from tfdist.cli import main; "
        f"main({['render', 'trainjob', *JOB, *TRAIN]!r}); "
        "sys.exit('tensorflow' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE).returncode == 0
