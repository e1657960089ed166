"""The labels and annotations of a lease's pod."""

from gpuspawner.backends.kubernetes.pods import to_metadata, variables_of

VARIABLES = {
    "GPUSPAWNER_LEASE_ID": "1" * 32,
    "GPUSPAWNER_ATTEMPT": "2",
    "GPUSPAWNER_HUB_ID": "h" * 32,
    "GPUSPAWNER_LEASE": '{"user":"alice"}',
    "GPUSPAWNER_LEASE_SIGNATURE": "0f",
}


def test_a_pod_has_the_data_that_rebuild_its_lease_and_no_secret():
    labels, annotations = to_metadata({**VARIABLES, "GPUSPAWNER_WORKSPACE_TOKEN": "secret", "HOME": "/home/alice"})
    assert variables_of(labels, annotations) == VARIABLES
    assert "secret" not in str((labels, annotations))
    assert all(len(value) <= 63 for value in labels.values()), "a label's value has 63 characters at most"


def test_a_pod_with_some_of_these_data_returns_them():
    assert variables_of({"gpuspawner.io/lease": "a", "app": "x"}, {}) == {"GPUSPAWNER_LEASE_ID": "a"}
