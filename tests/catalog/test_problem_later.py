"""Keys that are not built yet are refused by name."""

import pytest

LATER = {
    "quotas.q.namespace": "quotas: {q: {namespace: ml, gpus: {hard: 4}}}\n",
}


@pytest.mark.parametrize(("entry", "written"), LATER.items())
def test_a_key_that_is_not_built_yet_is_refused_by_name(entry, written, head, problems_of):
    (problem,) = problems_of(head + written)
    assert problem[2:] == f"{entry}: not built yet in this version. Remove it."
