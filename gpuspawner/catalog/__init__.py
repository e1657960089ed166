"""The catalog that administrators write, and the requests that users may therefore make.

Belongs here: the catalog's models, its loading and checking, errors that name file, line and entry, and the one path
that turns what a user asked into a request.
Never here: what is free, queued or in use, JupyterHub, HTTP, SQL, a clock.
"""

from gpuspawner.catalog.cluster_models import Cluster, HttpSchedulerAddress, KueueQueues, PodQueues, Route
from gpuspawner.catalog.derived import scaled
from gpuspawner.catalog.load import check, load_catalog, load_text
from gpuspawner.catalog.models import Catalog, Exporter
from gpuspawner.catalog.requests.gpu_choice import kinds_instead
from gpuspawner.catalog.requests.resolution import (
    RESERVED,
    AllRefused,
    Resolution,
    all_words,
    resolve,
    resolve_all,
    template_of,
    understood,
    what_is_wrong,
    without_defaults,
    without_lost_consent,
)
from gpuspawner.catalog.requests.start_options import LINKED, OPTIONS, TICKED, from_form, keys_of_form, to_options
from gpuspawner.catalog.requests.visibility import charging_teams, teams_of, visible
from gpuspawner.catalog.template_models import (
    ANY_GPU,
    NO_GPU,
    PAGES,
    SSH,
    Bounds,
    Defaults,
    Guarantee,
    Template,
    default_url,
)

__all__ = [
    "ANY_GPU",
    "LINKED",
    "NO_GPU",
    "OPTIONS",
    "PAGES",
    "RESERVED",
    "SSH",
    "TICKED",
    "AllRefused",
    "Bounds",
    "Catalog",
    "Cluster",
    "Defaults",
    "Exporter",
    "Guarantee",
    "HttpSchedulerAddress",
    "KueueQueues",
    "PodQueues",
    "Resolution",
    "Route",
    "Template",
    "all_words",
    "charging_teams",
    "check",
    "default_url",
    "from_form",
    "keys_of_form",
    "kinds_instead",
    "load_catalog",
    "load_text",
    "resolve",
    "resolve_all",
    "scaled",
    "teams_of",
    "template_of",
    "to_options",
    "understood",
    "visible",
    "what_is_wrong",
    "without_defaults",
    "without_lost_consent",
]
