"""How schemathesis is run here: as many examples an operation, the same ones each time."""

from hypothesis import HealthCheck, Phase, settings


def few(examples):
    """Return the settings of a test that tries this many."""
    return settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
