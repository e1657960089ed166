"""Which nodes are spot, and how long before their end the cloud tells."""

import pytest

from gpuspawner.core.gpus.vendors import notice_seconds, spot_labels


@pytest.mark.parametrize(
    ("labels", "seconds"),
    [
        ({"karpenter.sh/capacity-type": "spot"}, 120.0),
        ({"cloud.google.com/gke-spot": "true", "zone": "a"}, 30.0),
        ({"karpenter.sh/capacity-type": "spot", "kubernetes.azure.com/scalesetpriority": "spot"}, 30.0),
        ({"karpenter.sh/capacity-type": "on-demand"}, None),
        ({}, None),
    ],
)
def test_the_shortest_notice_of_a_spot_node_counts_and_other_nodes_have_no_notice(labels, seconds):
    assert notice_seconds(labels) == seconds
    assert bool(spot_labels(labels)) is (seconds is not None)
