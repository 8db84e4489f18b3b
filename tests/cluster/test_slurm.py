from __future__ import annotations

import pytest

from tfdist.cluster import Cluster, expand_hostlist
from tfdist.cluster.slurm_gpus import share_of_gpus
from tfdist.errors import ConfigError

STEP = {
    "SLURM_JOB_ID": "77",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_TASKS": "3",
    "SLURM_STEP_NODELIST": "node[9-10]",
    "SLURM_STEP_TASKS_PER_NODE": "2,1",
    "SLURM_PROCID": "2",
    "SLURM_NODEID": "1",
}


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("node1", ["node1"]),
        ("node[9-10,12],g[01-02]", ["node9", "node10", "node12", "g01", "g02"]),
        ("a,b,a2", ["a", "b", "a2"]),
        ("n[098-101]", ["n098", "n099", "n100", "n101"]),
        ("r[1-2]n[1-2]", ["r1n1", "r1n2", "r2n1", "r2n2"]),
        # As `scontrol show hostnames` of Slurm 22.05.8 says.
        (
            "a[2,1]b[1,3]c[5,4]",
            ["a2b1c5", "a2b1c4", "a1b1c5", "a1b1c4", "a2b3c5", "a2b3c4", "a1b3c5", "a1b3c4"],
        ),
        (
            "a[1-2]b[1-2]c[1-2]d[1-2]",
            [
                "a1b1c1d1",
                "a1b1c1d2",
                "a2b1c1d1",
                "a2b1c1d2",
                "a1b2c1d1",
                "a1b2c1d2",
                "a2b2c1d1",
                "a2b2c1d2",
                "a1b1c2d1",
                "a1b1c2d2",
                "a2b1c2d1",
                "a2b1c2d2",
                "a1b2c2d1",
                "a1b2c2d2",
                "a2b2c2d1",
                "a2b2c2d2",
            ],
        ),
        ("n[1-2].local:2222", ["n1.local:2222", "n2.local:2222"]),
    ],
)
def test_host_lists(text: str, hosts: list[str]) -> None:
    assert expand_hostlist(text) == hosts


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a,",
        "a[1-",
        "a]1[",
        "a[]",
        "a[3-1]",
        "a[x]",
        "a[[1]]",
        "a[0-99999999]",
        "a[1][",
        "a[0-999]b[0-999]",
    ],
)
def test_what_is_no_host_list(text: str) -> None:
    with pytest.raises(ConfigError, match="^host list: "):
        expand_hostlist(text)


def test_nodes_keep_their_order_and_every_task_computes_the_same() -> None:
    clusters = [
        Cluster.from_environment({**STEP, "SLURM_PROCID": str(rank), "SLURM_NODEID": str(node)})
        for rank, node in enumerate([0, 0, 1])
    ]
    assert len({cluster.fingerprint() for cluster in clusters}) == 1
    assert [cluster.task.host for cluster in clusters] == ["node9", "node9", "node10"]
    assert [str(cluster.task) for cluster in clusters] == ["worker/0", "worker/1", "worker/2"]
    ports = [cluster.task.port for cluster in clusters]
    assert ports[0] == ports[2] == (ports[1] or 0) - 1
    assert clusters[0].source == "Slurm"


def test_roles_are_handed_out_by_rank() -> None:
    cluster = Cluster.from_environment({**STEP, "TFDIST_ROLES": "chief:1,ps:1,worker:1"})
    assert str(cluster.task) == "worker/0" and cluster.has_ps and cluster.task.host == "node10"


def test_cyclic_distribution() -> None:
    environ = {**STEP, "SLURM_DISTRIBUTION": "cyclic", "SLURM_PROCID": "1"}
    assert Cluster.from_environment(environ).task.host == "node10"


def test_the_first_port_can_be_set() -> None:
    assert Cluster.from_environment({**STEP, "TFDIST_PORT_BASE": "5000"}).task.port == 5000


def test_jobs_that_follow_each_other_have_other_ports() -> None:
    ports = {
        Cluster.from_environment({**STEP, "SLURM_JOB_ID": str(job)}).task.port
        for job in range(1, 20)
    }
    assert len(ports) == 19 and all(1024 < (port or 0) < 32768 for port in ports)


def test_ports_that_slurm_reserved_are_taken() -> None:
    environ = {**STEP, "SLURM_STEP_RESV_PORTS": "31004,31006-31007"}
    ports = [address.rpartition(":")[2] for address in Cluster.from_environment(environ).addresses]
    assert ports == ["31004", "31006", "31004"]
    set_by_hand = Cluster.from_environment({**environ, "TFDIST_PORT_BASE": "5000"})
    assert set_by_hand.task.port == 5000


def test_a_job_that_was_put_back_has_other_ports() -> None:
    ports = {
        Cluster.from_environment({**STEP, "SLURM_RESTART_COUNT": str(count)}).task.port
        for count in range(11)
    }
    assert len(ports) == 11
    assert Cluster.from_environment(STEP).task.port in ports


def heterogeneous(rank: int, node: int, **change: str) -> dict[str, str]:
    """A task of a job of two parts, as Slurm 22.05.8 describes it; the first is on node10."""
    return {
        **STEP,
        "SLURM_STEP_NUM_TASKS": "5",
        "SLURM_STEP_TASKS_PER_NODE": "2,3",  # By name, as the list.
        "SLURM_HET_SIZE": "2",
        "SLURM_JOB_NODELIST_HET_GROUP_0": "node10",
        "SLURM_JOB_NODELIST_HET_GROUP_1": "node9",
        "SLURM_PROCID": str(rank),
        "SLURM_NODEID": str(node),
        **change,
    }


def test_ranks_of_a_heterogeneous_job_go_from_group_to_group() -> None:
    roles = {"TFDIST_ROLES": "chief:1,ps:2,worker:2"}
    nodes = [0, 0, 0, 1, 1]
    clusters = [
        Cluster.from_environment(heterogeneous(rank, node, **roles))
        for rank, node in enumerate(nodes)
    ]
    assert len({cluster.fingerprint() for cluster in clusters}) == 1
    hosts = [cluster.task.host for cluster in clusters]
    assert hosts == ["node10", "node10", "node10", "node9", "node9"]
    names = [str(cluster.task) for cluster in clusters]
    assert names == ["chief/0", "ps/0", "ps/1", "worker/0", "worker/1"]
    assert len({task.address for task in clusters[0].tasks}) == 5


def test_gpus_of_a_heterogeneous_job_are_for_its_workers() -> None:
    def share(rank: int) -> str | None:
        environ = heterogeneous(rank, 1, TFDIST_ROLES="chief:1,ps:2,worker:2", **all_gpus(4))
        return share_of_gpus(environ)

    assert [share(3), share(4)] == ["0,1", "2,3"]


def test_a_step_of_one_part_of_a_heterogeneous_job() -> None:
    environ = heterogeneous(
        0,
        0,
        SLURM_STEP_NUM_TASKS="2",
        SLURM_STEP_NODELIST="node9",
        SLURM_STEP_TASKS_PER_NODE="2",
    )
    assert Cluster.from_environment(environ).task.host == "node9"


@pytest.mark.parametrize(
    ("nodes", "host"), [("node[9-10]", "node10-ib0"), ("node[9-10].site", "node10-ib0.site")]
)
def test_hosts_have_other_names_on_another_network(nodes: str, host: str) -> None:
    environ = {**STEP, "SLURM_STEP_NODELIST": nodes, "TFDIST_HOST_SUFFIX": "-ib0"}
    assert Cluster.from_environment(environ).task.host == host


@pytest.mark.parametrize(
    "environ",
    [
        {**STEP, "SLURM_STEP_NUM_TASKS": "1"},
        {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4", "SLURM_JOB_NODELIST": "n[1-2]"},
        # A batch script: it has a rank, but runs once.
        {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4", "SLURM_PROCID": "0", "ENVIRONMENT": "BATCH"},
    ],
)
def test_what_is_no_step_is_a_local_task(environ: dict[str, str]) -> None:
    assert Cluster.from_environment(environ).is_local


FULL = {"SLURM_STEP_NODELIST": "n1", "SLURM_PROCID": "0", "SLURM_NODEID": "0"}


@pytest.mark.parametrize(
    ("change", "start"),
    [
        ({"SLURM_STEP_TASKS_PER_NODE": "2"}, "SLURM_STEP_TASKS_PER_NODE: '2' is not for 3 tasks"),
        ({"SLURM_STEP_TASKS_PER_NODE": "x"}, "SLURM_STEP_TASKS_PER_NODE: 'x' is not like"),
        ({"SLURM_PROCID": "3"}, "SLURM_PROCID: 3 is out of range"),
        ({"SLURM_PROCID": "x"}, "SLURM_PROCID: 'x' is not an integer"),
        ({"SLURM_NODEID": "0"}, "SLURM_NODEID: rank 2 is on node 0, not 1"),
        ({"SLURM_DISTRIBUTION": "plane=2"}, "SLURM_DISTRIBUTION: 'plane'"),
        ({"SLURM_DISTRIBUTION": "arbitrary"}, "SLURM_DISTRIBUTION: 'arbitrary'"),
        ({"SLURM_STEP_NODELIST": "n[1"}, "SLURM_STEP_NODELIST: 'n[1' has brackets"),
        ({"TFDIST_ROLES": "worker:2"}, "TFDIST_ROLES: 'worker:2' is not for 3 tasks"),
        ({"TFDIST_ROLES": "boss:3"}, "TFDIST_ROLES: 'boss' is not a role"),
        ({"TFDIST_ROLES": "ps:3"}, "SLURM.ps: there is a ps but no worker"),
        ({"SLURM_STEP_RESV_PORTS": "3-2"}, "SLURM_STEP_RESV_PORTS: '3-2' is not"),
        (
            {"SLURM_STEP_RESV_PORTS": "31000"},
            "SLURM_STEP_RESV_PORTS: '31000' is 1 port for 2 tasks a node; use srun --resv-ports=2",
        ),
        ({"TFDIST_PORT_BASE": "80"}, "TFDIST_PORT_BASE: 80 is out of range"),
        (
            {**FULL, "SLURM_STEP_NUM_TASKS": "100000", "SLURM_STEP_TASKS_PER_NODE": "100000"},
            "SLURM_STEP_TASKS_PER_NODE: 100000 tasks are on a node; at most 12000 can be",
        ),
        (
            {**FULL, "SLURM_STEP_NUM_TASKS": "999999", "SLURM_STEP_TASKS_PER_NODE": "999999"},
            "SLURM_STEP_NUM_TASKS: 999999 is out of range; 1 to 100000",
        ),
        ({"SLURM_STEP_NUM_TASKS": "0"}, "SLURM_STEP_NUM_TASKS: 0 is out of range"),
    ],
)
def test_what_does_not_fit_is_named(change: dict[str, str], start: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Cluster.from_environment({**STEP, **change})
    assert str(caught.value).startswith(start)


def on_node(rank: int, **change: str) -> dict[str, str]:
    """A task of four on one node."""
    return {
        **STEP,
        "SLURM_STEP_NUM_TASKS": "4",
        "SLURM_STEP_NODELIST": "node9",
        "SLURM_STEP_TASKS_PER_NODE": "4",
        "SLURM_PROCID": str(rank),
        "SLURM_NODEID": "0",
        **change,
    }


def all_gpus(count: int) -> dict[str, str]:
    """What `srun --gres=gpu:COUNT` sets for each task."""
    names = ",".join(map(str, range(count)))
    return {"CUDA_VISIBLE_DEVICES": names, "SLURM_GPUS_ON_NODE": str(count)}


@pytest.mark.parametrize(
    ("gpus", "roles", "shares"),
    [
        (4, "worker:4", ["0", "1", "2", "3"]),
        (8, "chief:1,worker:3", ["0,1", "2,3", "4,5", "6,7"]),
        (2, "chief:1,ps:1,worker:2", ["", "", "0", "1"]),
    ],
)
def test_tasks_of_a_node_share_its_gpus(gpus: int, roles: str, shares: list[str]) -> None:
    found = [share_of_gpus(on_node(n, TFDIST_ROLES=roles, **all_gpus(gpus))) for n in range(4)]
    assert found == shares


@pytest.mark.parametrize(
    "environ",
    [
        # --gpus-per-task and --gpu-bind: Slurm has shared them out.
        on_node(1, CUDA_VISIBLE_DEVICES="1", SLURM_GPUS_ON_NODE="4"),
        on_node(1),
        {**STEP, **all_gpus(2)},  # Alone on its node.
        {**all_gpus(2), "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"},
    ],
)
def test_gpus_of_ones_own_stay(environ: dict[str, str]) -> None:
    assert share_of_gpus(environ) is None


def test_fewer_gpus_than_tasks_are_refused() -> None:
    with pytest.raises(ConfigError) as caught:
        Cluster.from_environment(on_node(0, **all_gpus(2)))
    assert str(caught.value) == (
        "CUDA_VISIBLE_DEVICES: 2 GPUs for 4 tasks that compute on this node; use --gres=gpu:4, or "
        "--ntasks-per-node=2"
    )
