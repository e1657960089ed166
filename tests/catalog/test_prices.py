"""Prices with dates: what may be written, and which one is valid."""

from datetime import date

import pytest

from gpuspawner.catalog import load_catalog, load_text
from gpuspawner.catalog.requests.visibility import with_prices_of

HEAD = "version: 1\ntemplates:\n  lab: {gpus: {a100: 1}}\ngpus:\n  a100: {match: A100, memory: 80GiB, "
NEW_YEAR = date(2027, 1, 1)


def test_the_latest_price_that_has_begun_is_valid():
    catalog = load_text(HEAD + "price: 2, price_changes: {2027-06-01: 4, 2027-01-01: 3.5}}")
    kind = catalog.gpus["a100"]
    days = (date(2026, 12, 31), NEW_YEAR, date(2027, 5, 31), date(2027, 6, 1))
    assert [kind.price_on(day) for day in days] == [2.0, 3.5, 3.5, 4.0]
    priced = with_prices_of(catalog, NEW_YEAR)
    assert priced.gpus["a100"].price_per_hour == 3.5
    assert with_prices_of(priced, date(2027, 2, 1)) is priced
    first = load_text(HEAD + "price_changes: {2027-01-01: 3.5}}").gpus["a100"]
    assert (first.price_on(days[0]), first.price_on(NEW_YEAR)) == (None, 3.5)


def test_a_dict_that_yaml_made_has_dates_as_keys():
    gpus = {"a100": {"match": "A100", "memory": "80GiB", "price_changes": {NEW_YEAR: 3.5}}}
    catalog = load_catalog({"version": 1, "gpus": gpus, "templates": {"lab": {"gpus": {"a100": 1}}}})
    assert catalog.gpus["a100"].price_on(NEW_YEAR) == 3.5


def test_shares_and_clusters_follow_the_changes_of_the_whole_gpu():
    text = HEAD + "price: 2, price_changes: {2027-01-01: 3}}\n  half: {of: a100, shares: 2}\n"
    text += "  own: {of: a100, shares: 4, price: 1}\nclusters:\n  here: {}\n"
    text += '  far: {kubeconfig: /k, hub: "https://h", nodes: 10.0.0.1, price_factor: 0.5}\n'
    prices = {name: kind.price_on(NEW_YEAR) for name, kind in load_text(text).gpus.items()}
    assert prices == {
        "a100": 3.0, "half": 1.5, "own": 1.0, "a100@far": 1.5, "half@far": 0.75, "own@far": 0.5,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("written", "problem"),
    [
        ("4", "4 is not a mapping of at most 366 days to prices. Write a price for each day"),
        ("{soon: 4}", "'soon' is not a date. Write year, month and day, for example 2027-02-01"),
        ("{2027-01-01: dear}", "'dear' is not a price. Write a plain number"),
        ("{2027-01-01: -1}", "-1 is not a price"),
    ],
)
def test_a_wrong_change_is_refused_at_its_line(written, problem, problems_of):
    (found,) = problems_of(f"{HEAD}price_changes: {written}}}")
    assert found.startswith("5 gpus.a100.price_changes: ")
    assert problem in found
