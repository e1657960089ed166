"""Where a test with the fixture ``python`` runs; without one of these, `make test` takes the newest JupyterHub alone.

`make test` runs the tests of differences between JupyterHub 5 and 6 on both: a start by the REST API, a start that is
refused or fails, its progress, stops, servers that are found again, the form, and who may see what.
"""

import pytest

both_hubs = pytest.mark.parametrize("python", ["hub6", "hub5"], indirect=True)
newest_hub = pytest.mark.parametrize("python", ["hub6"], indirect=True)
oldest_hub = pytest.mark.parametrize("python", ["hub5"], indirect=True)
