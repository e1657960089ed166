"""What the administrator writes, and what a request may therefore ask.

Belongs here: the catalog's models, its loading and checking, errors that name file, line and entry, and the one path
that turns what a user asked into a request.
Never here: what is free, queued or in use, JupyterHub, HTTP, SQL, a clock.
"""

from gpuspawner.catalog.cluster_models import Cluster, HttpSchedulerAddress, KueueQueues, PodQueues, Route
from gpuspawner.catalog.load import check, load_catalog, load_text
from gpuspawner.catalog.models import (
    ANY_GPU,
    NO_GPU,
    PAGES,
    SSH,
    Bounds,
    Catalog,
    Defaults,
    Exporter,
    Guarantee,
    Template,
    default_url,
)
from gpuspawner.catalog.requests.picks import offered_instead
from gpuspawner.catalog.requests.resolve import (
    LINKED,
    OPTIONS,
    RESERVED,
    TICKED,
    completed,
    from_form,
    keys_of_form,
    resolve,
    template_of,
    to_options,
    without_defaults,
    without_lost_consent,
)
from gpuspawner.catalog.requests.tried import AllRefused, all_at_once, all_words, tried, understood, what_is_wrong
from gpuspawner.catalog.scaling import scaled
from gpuspawner.catalog.visible import charging_teams, teams_of, visible

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
    "Route",
    "Template",
    "all_at_once",
    "all_words",
    "charging_teams",
    "check",
    "completed",
    "default_url",
    "from_form",
    "keys_of_form",
    "load_catalog",
    "load_text",
    "offered_instead",
    "resolve",
    "scaled",
    "teams_of",
    "template_of",
    "to_options",
    "tried",
    "understood",
    "visible",
    "what_is_wrong",
    "without_defaults",
    "without_lost_consent",
]
