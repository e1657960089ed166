"""The simulated GPUs of the node reach containers as real ones would."""

import pytest
from gpus import simulated, uuids_in
from nodes import wait_for

pytestmark = pytest.mark.slow

ASK_FOR_NONE = ("sh", "-c", "command -v nvidia-smi; env | grep NVIDIA; ls -d /dev/nvidia*")


@pytest.fixture(scope="module")
def gpus(one_machine):
    """Four whole GPUs."""
    with simulated(one_machine, count=4) as found:
        yield found


def test_a_container_sees_those_that_it_was_given(one_machine, namespace, gpus):
    one_machine.start_pod(namespace, "two", ["sleep", "600"], {"nvidia.com/gpu": "2"})
    uuids = uuids_in(one_machine, namespace, "two")
    assert len(uuids) == 2
    assert set(uuids) < set(gpus.uuids)


def test_a_container_without_a_gpu_request_sees_no_gpu(one_machine, namespace, gpus):
    one_machine.start_pod(namespace, "none", ["sleep", "600"])
    _, seen, _ = one_machine.run_in(namespace, "none", *ASK_FOR_NONE)
    assert seen == ""


def test_work_on_a_gpu_is_seen_by_the_probes_own_means(one_machine, namespace, gpus):
    one_machine.start_pod(namespace, "busy", ["sleep", "600"], {"nvidia.com/gpu": "1"})
    (uuid,) = uuids_in(one_machine, namespace, "busy")
    gpus.set_utilization(uuid, 10)
    query = ("nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits")
    seen = wait_for(
        lambda: (answer := one_machine.run_in(namespace, "busy", *query))[1].strip() != "0" and answer, "work"
    )
    assert seen == (0, "10\n", "")
    gpus.set_utilization(uuid, 0)


def test_two_pods_never_get_the_same_and_a_third_waits(one_machine, namespace, gpus):
    for name in ("first", "second"):
        one_machine.start_pod(namespace, name, ["sleep", "600"], {"nvidia.com/gpu": "2"})
    one_machine.start_pod(namespace, "third", ["sleep", "600"], {"nvidia.com/gpu": "1"}, wait=False)
    seen = [one_machine.run_in(namespace, name, "nvidia-smi", "-L")[1] for name in ("first", "second")]
    assert len(set("".join(text.replace("GPU 1", "GPU 0") for text in seen).splitlines())) == 4

    def told():
        conditions = one_machine.core.read_namespaced_pod("third", namespace).status.conditions or []
        return next((one.message for one in conditions if one.reason == "Unschedulable"), None)

    assert "Insufficient nvidia.com/gpu" in wait_for(told, "the third is told")
    one_machine.core.delete_namespaced_pod("first", namespace)
    one_machine.wait_for_phase(namespace, "third", "Running")


def test_a_device_that_turns_unhealthy_is_no_longer_offered(one_machine, gpus):
    failed = gpus.uuids[0]
    gpus.set_health(failed, healthy=False)
    gpus.wait_for_number(3)
    assert one_machine.core.read_node("gpu-node").status.capacity["nvidia.com/gpu"] == "4"
    gpus.set_health(failed, healthy=True)
    gpus.wait_for_number(4)


def test_they_come_back_with_the_kubelet(one_machine, gpus):
    one_machine.own.stop_process("kubelet")
    one_machine.own.start_process("kubelet")
    gpus.wait_for_number(4)


def test_shares_of_one_gpu_and_mig_devices(one_machine, namespace, gpus):
    gpus.stop()
    try:
        with simulated(one_machine, count=1, replicas=3) as shared:
            for name in ("left", "right"):
                one_machine.start_pod(namespace, name, ["sleep", "600"], {"nvidia.com/gpu": "1"})
                assert uuids_in(one_machine, namespace, name) == [*shared.uuids]
            labels = one_machine.core.read_node("gpu-node").metadata.labels
            assert labels["nvidia.com/gpu.product"] == "NVIDIA-A100-SXM4-40GB-SHARED"
            assert labels["nvidia.com/gpu.replicas"] == "3"
            one_machine.core.delete_collection_namespaced_pod(namespace, grace_period_seconds=0)
        with simulated(one_machine, count=1, mig="1g.10gb") as mig:
            one_machine.start_pod(namespace, "slice", ["sleep", "600"], {"nvidia.com/mig-1g.10gb": "1"})
            listed = one_machine.run_in(namespace, "slice", "nvidia-smi", "-L")[1]
            assert f"GPU 0: NVIDIA A100-SXM4-40GB (UUID: {mig.gpus[0].uuid})\n  MIG 1g.10gb" in listed
            (given,) = (device["id"] for device in mig.devices if device["id"] in listed)
            query = "--query-gpu=index,mig.mode.current,utilization.gpu,memory.used"
            said = one_machine.run_in(namespace, "slice", "nvidia-smi", query, "--format=csv,noheader,nounits")
            assert said == (0, "0, Enabled, [N/A], [Insufficient Permissions]\n", "")
            assert one_machine.run_in(namespace, "slice", "printenv", "NVIDIA_VISIBLE_DEVICES")[1].strip() == given
            one_machine.core.delete_collection_namespaced_pod(namespace, grace_period_seconds=0)
        capacity = one_machine.core.read_node("gpu-node").status.capacity
        assert capacity["nvidia.com/mig-1g.10gb"] == "0", "or a doctor finds a plugin that has ended, for five minutes"
    finally:
        gpus.start()
