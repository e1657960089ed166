"""``clusters``: the GPU kinds of each cluster, those that templates offer, and errors."""

from fractions import Fraction

import pytest

from gpuspawner.catalog import KueueQueues, PodQueues, Route, load_text, resolve, scaled
from gpuspawner.core.gpus.placement import accepted_kinds
from gpuspawner.core.quotas.limits import requested_amount, show_amount
from gpuspawner.core.rules import Limit, LimitedResource

CATALOG = """
version: 1
currency: CHF
gpus:
  a100: {title: A100, match: NVIDIA-A100*, memory: 80GiB, price: 3}
  h100: {title: H100, match: NVIDIA-H100*, memory: 80GiB, price: 5}
  half: {title: Half an A100, of: a100, shares: 2}
clusters:
  eu-west: {data: [genomes]}
  us-east: {kubeconfig: /etc/clusters/us-east, hub: "https://hub.example.org", nodes: 10.0.0.1, price_factor: 0.8,
    gpus: [a100, half], data: [imagenet], title: US East}
templates:
  lab: {gpus: {a100: 1-2, half: 1}, substitutes: {a100: [h100]}}
  images: {extends: lab, data: [imagenet], default: {gpu: a100}}
quotas:
  all: {users: each, gpus: {hard: 2}}
"""


@pytest.fixture
def catalog():
    return load_text(CATALOG.replace("quotas:\n  all: {users: each, gpus: {hard: 2}}\n", ""))


def test_each_cluster_has_its_own_kind_with_its_price(catalog):
    assert {k.name: (k.title, k.price_per_hour, k.of, k.cluster) for k in catalog.gpus.values()} == {
        "a100": ("A100 in eu-west", 3.0, None, ""),
        "a100@us-east": ("A100 in US East", 2.4, None, "us-east"),
        "h100": ("H100 in eu-west", 5.0, None, ""),
        "half": ("Half an A100 in eu-west", 1.5, "a100", ""),
        "half@us-east": ("Half an A100 in US East", 1.2, "a100@us-east", "us-east"),
    }


def test_a_template_offers_the_same_kind_in_another_cluster_before_another_kind(catalog):
    lab = catalog.templates["lab"]
    assert list(lab.gpus) == ["a100", "a100@us-east", "half", "half@us-east"]
    assert lab.substitutes["a100"] == ("a100@us-east", "h100")
    assert lab.substitutes["a100@us-east"] == ("a100", "h100")
    assert lab.default.gpu == "a100"


def test_the_cluster_that_has_a_template_s_data_comes_first(catalog):
    images = catalog.templates["images"]
    assert list(images.gpus)[:2] == ["a100@us-east", "a100"]
    assert images.default.gpu == "a100@us-east"


def test_a_description_names_the_cluster_with_the_data_the_price_and_the_separate_homes(catalog):
    homes = "Each cluster has a home of its own: what you save in one is not in the other."
    assert catalog.templates["lab"].description == f"US East costs 20 % less than eu-west. {homes}"
    images = "Its data is in US East. eu-west costs 25 % more than US East."
    assert catalog.templates["images"].description == f"{images} {homes}"


def test_a_request_names_a_cluster_or_accepts_another(catalog):
    picked = resolve(catalog, {"template": "lab", "gpu": "a100@us-east"}, "alice")
    assert (picked.gpu, picked.substitutes) == ("a100@us-east", ())
    either = resolve(catalog, {"template": "lab", "gpu": "a100", "substitutes": ["a100@us-east"]}, "alice")
    assert (either.gpu, either.substitutes) == ("a100", ("a100@us-east",))


@pytest.mark.parametrize(
    ("place", "kinds"),
    [
        ("cheapest", ["a100@us-east", "a100"]),
        ("nearest", ["a100", "a100@us-east"]),
        ("soonest", ["a100", "a100@us-east"]),
    ],
)
def test_a_template_s_place_says_which_cluster_comes_first(place, kinds):
    written = f"data: [genomes], place: {place}, substitutes:"
    catalog = load_text(CATALOG.partition("quotas:")[0].replace("substitutes:", written, 1))
    assert list(catalog.templates["lab"].gpus)[:2] == kinds
    assert catalog.templates["lab"].default.gpu == kinds[0]
    request = resolve(catalog, {"template": "lab", "gpu": "a100", "substitutes": ["a100@us-east"]}, "alice")
    assert (request.place, request.gpu, request.substitutes) == (place, "a100", ("a100@us-east",))
    expected = {"soonest": ["a100", "a100@us-east"]}.get(place, kinds)
    assert [kind.name for kind in accepted_kinds(request, catalog.gpus)] == expected
    alone = resolve(catalog, {"template": "lab", "gpu": "a100"}, "alice")
    assert [kind.name for kind in accepted_kinds(alone, catalog.gpus)] == ["a100"], "only what the user accepts"


def test_another_model_comes_after_the_requested_one_in_each_cluster():
    text = CATALOG.partition("quotas:")[0].replace("substitutes:", "place: cheapest, substitutes:", 1)
    catalog = load_text(text.replace("gpus: [a100, half]", "gpus: [a100, h100, half]"))
    options = {"gpu": "a100", "substitutes": "h100,h100@us-east,a100@us-east"}
    request = resolve(catalog, {"template": "lab", **options}, "alice")
    accepted = [kind.name for kind in accepted_kinds(request, catalog.gpus)]
    assert accepted == ["a100@us-east", "a100", "h100", "h100@us-east"]


def test_a_cluster_is_reached_by_its_nodes_an_ingress_controller_or_a_gateway():
    nodes = "nodes: 10.0.0.1"
    ways = {
        nodes: ("10.0.0.1", None),
        "ingress: {url: 'https://in/', class_name: nginx}": ("", Route("https://in", class_name="nginx")),
        "gateway: {url: 'http://gw', name: shared}": ("", Route("http://gw", gateway="shared")),
    }
    text = CATALOG.partition("quotas:")[0]
    for written, (node, route) in ways.items():
        east = load_text(text.replace(nodes, written)).clusters["us-east"]
        assert (east.nodes, east.route) == (node, route)


def test_without_clusters_kinds_keep_their_names_and_titles(catalog):
    plain = load_text("version: 1\ngpus: {t4: {match: T4, memory: 16GiB}}\ntemplates: {lab: {gpus: {t4: 1}}}\n")
    assert dict(plain.clusters) == {}
    assert plain.gpus["t4"].title == "t4"
    assert dict(plain.templates["lab"].substitutes) == {}


REACHED = "kubeconfig: /k, hub: 'http://h'"
THERE = f"{REACHED}, nodes: n"
WRONG = {
    "clusters": {
        "{one: {}, two: {}}": "clusters: one and two have no kubeconfig. Leave kubeconfig out of exactly one",
        f"{{one: {{{THERE}}}}}": "clusters: no cluster is the hub's own. Leave kubeconfig out of exactly one cluster",
    },
    "clusters.two": {
        f"{{one: {{}}, two: {{{THERE}, ingress: {{url: 'http://i'}}}}}}": "in two ways. Keep one of nodes and ingress",
        "{one: {}, two: {kubeconfig: /k}}": "hub is missing. Add the address at which",
    },
    "clusters.two.gpus": {f"{{one: {{}}, two: {{{THERE}, gpus: [a1]}}}}": "no GPU kind is called `a1`"},
    "clusters.one.context": {f"{{one: {{context: x}}, two: {{{THERE}}}}}": "kubeconfig is missing. Add kubeconfig:"},
    "clusters.two.price_factor": {
        f"{{one: {{}}, two: {{{THERE}, price_factor: 0}}}}": "0 is not a factor. Write a number above 0"
    },
    "clusters.two.nodes": {
        "{one: {}, two: {kubeconfig: /k, hub: 'http://h', nodes: 'http://x:1'}}": "is not the name or address of a host"
    },
    "clusters.two.ingress": {
        f"{{one: {{}}, two: {{{REACHED}, ingress: {{class_name: nginx}}}}}}": "url is missing. Add url:"
    },
    "clusters.two.gateway": {
        f"{{one: {{}}, two: {{{REACHED}, gateway: {{url: 'http://g'}}}}}}": "name is missing. Add name:"
    },
    "clusters.one.scheduler": {
        "{one: {scheduler: kueue}}": "'kueue' is not a mapping. Write keys and values",
        "{one: {scheduler: {kueue: {queue: a}, kai: {}}}}": "two schedulers can't own one queue. Keep one of kueue",
    },
    "clusters.one.scheduler.http": {
        "{one: {scheduler: {http: {url: 'http://b'}}}}": "decides about all clusters. Write kueue, volcano or kai"
    },
    "clusters.two.scheduler": {
        f"{{one: {{}}, two: {{{THERE}, scheduler: {{kai: {{}}}}}}}}\nscheduler: {{http: {{url: 'http://b'}}}}": (
            "decides about all clusters. Remove it, or remove scheduler: {http: ...}"
        )
    },
    "clusters.one.scheduler.kueue": {
        "{one: {scheduler: {kueue: {}}}}": "queue is missing. Add queue: with the name of a LocalQueue"
    },
    "clusters.one.scheduler.kueue.teams.ml": {
        "{one: {scheduler: {kueue: {queue: a, teams: {ml: b}}}}}": "no team is called `ml`"
    },
    "scheduler": {
        "{one: {}}\nscheduler: {kueue: {queue: a}}": "cannot share the queue of one scheduler. Write it in the cluster"
    },
}


@pytest.mark.parametrize(
    ("entry", "written", "said"), [(e, w, said) for e, found in WRONG.items() for w, said in found.items()]
)
def test_an_error_of_a_cluster_names_its_entry(entry, written, said, head, problems_of):
    problem = next(found for found in problems_of(f"{head}  b: {{}}\nclusters: {written}\n") if f"{entry}: " in found)
    assert said in problem


def test_a_wrong_kubeconfig_is_not_also_missing(head, problems_of):
    (problem,) = problems_of(f"{head}clusters: {{one: {{}}, two: {{kubeconfig: k, context: x, hub: 'http://h'}}}}\n")
    assert problem.startswith("6 clusters.two.kubeconfig: 'k' is not a path.")


OWNED = (
    CATALOG.partition("quotas:")[0].replace("title: US East}", "title: US East, scheduler: {%s}}") + "teams: {ml: {}}"
)


def test_kinds_of_a_cluster_with_its_own_scheduler_are_in_no_other_queue():
    catalog = load_text(OWNED % "kueue: {queue: gpus, teams: {ml: of-ml}}")
    owner = catalog.clusters["us-east"].scheduler
    assert owner == KueueQueues("gpus", {"ml": "of-ml"})
    assert catalog.scheduler is None
    assert {catalog.clusters["us-east"]: "its client"}, "the spawner keeps one by it"
    assert catalog.gpus["a100@us-east"].title == "A100 in US East (Kueue's queue)"
    assert catalog.gpus["a100@us-east"].title_anywhere == "A100"
    lab = catalog.templates["lab"]
    assert list(lab.gpus) == ["a100", "a100@us-east", "half", "half@us-east"]
    assert dict(lab.substitutes) == {"a100": ("h100",)}


def test_a_scheduler_over_http_is_beside_clusters():
    catalog = load_text(CATALOG.partition("quotas:")[0] + "scheduler: {http: {url: 'http://batch:8080'}}")
    assert catalog.scheduler.url == "http://batch:8080"
    assert catalog.templates["lab"].substitutes["a100"] == ("a100@us-east", "h100")


def test_the_wait_of_pods_in_a_queue_is_scaled():
    catalog = load_text(OWNED % "volcano: {queue: gpus, wait: 10m}")
    assert catalog.clusters["us-east"].scheduler == PodQueues("volcano", "gpus", wait_seconds=600.0)
    assert scaled(catalog, 60).clusters["us-east"].scheduler.wait_seconds == 10.0
    assert scaled(catalog, 60).clusters["eu-west"] == catalog.clusters["eu-west"]


def test_a_quota_of_a_kind_counts_it_in_every_cluster(catalog):
    limit = Limit(LimitedResource.KIND, "a100", hard=Fraction(2))
    there = resolve(catalog, {"template": "lab", "gpu": "a100@us-east", "count": 2}, "alice")
    assert requested_amount(limit, there, catalog.gpus["a100@us-east"]) == 2
    assert requested_amount(limit, there, None) == 2  # its kind left the catalog
    assert show_amount(limit, 2, catalog.gpus) == "2 A100"
