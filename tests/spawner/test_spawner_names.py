"""Our mixins and the spawners below them: no name of ours hides one of theirs, or is hidden by it."""

import ast
import inspect
from functools import cache

import batchspawner
import pytest
from dockerspawner import DockerSpawner, SwarmSpawner, SystemUserSpawner
from jupyterhub.spawner import LocalProcessSpawner, SimpleLocalProcessSpawner, Spawner
from kubespawner import KubeSpawner
from sudospawner import SudoSpawner
from systemdspawner import SystemdSpawner
from traitlets.config import Configurable, LoggingConfigurable

from gpuspawner.spawner.kubernetes.spawner import GPUSpawner, KubePods
from gpuspawner.spawner.mixin import GPUSpawnerMixin

BATCH = [one for one in vars(batchspawner).values() if isinstance(one, type) and issubclass(one, Spawner)]
SPAWNERS = [LocalProcessSpawner, SimpleLocalProcessSpawner, DockerSpawner, SwarmSpawner, SystemUserSpawner]
SPAWNERS += [SystemdSpawner, SudoSpawner, KubeSpawner, *(one for one in BATCH if one is not Spawner)]
OF_ANY_MIXIN = [one for one in GPUSpawnerMixin.__mro__ if one.__module__.startswith("gpuspawner.")]
OF_PODS = [one for one in KubePods.__mro__ if one.__module__.startswith("gpuspawner.") and one not in OF_ANY_MIXIN]
OURS = ("gpu_", "_gpu_")


@cache
def names_given(spawner: type) -> frozenset[str]:
    """Return the names that the methods of a class give an object of it."""
    return frozenset(
        node.attr
        for node in ast.walk(ast.parse(inspect.getsource(spawner)))
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and ast.unparse(node.value) == "self"
    )


def names_in(spawner: type) -> set[str]:
    """Return every name that objects of a class have."""
    return set(dir(spawner)).union(*(names_given(one) for one in spawner.__mro__ if issubclass(one, Spawner)))


def own_names(mixin: type) -> set[str]:
    """Return the names that a class of ours gives itself or its objects, Python's and traitlets' own left out."""
    plain = dir(type("Plain", (LoggingConfigurable,), {}))
    return {name for name in vars(mixin) if name not in plain} | names_given(mixin)


@pytest.mark.parametrize("mixin", OF_ANY_MIXIN)
def test_names_outside_jupyterhub_are_named_as_ours(mixin):
    known = names_in(LocalProcessSpawner)
    assert {name for name in own_names(mixin) if not name.startswith(OURS)} <= known


@pytest.mark.parametrize("mixin", OF_PODS)
def test_names_outside_kubespawner_are_named_as_ours(mixin):
    known = names_in(KubeSpawner)
    assert {name for name in own_names(mixin) if not name.startswith(OURS)} <= known


@pytest.mark.parametrize("spawner", SPAWNERS)
def test_no_other_spawner_has_a_name_of_ours(spawner):
    assert not {name for name in names_in(spawner) if name.startswith(OURS)}


def test_help_of_the_hub_lists_the_mixin_and_the_spawner_and_none_of_their_parts_each_setting_explained():
    shown = [one for one in KubePods.__mro__ + GPUSpawner.__mro__ if issubclass(one, Configurable)]
    assert {one.__name__ for one in shown if one.__module__.startswith("gpuspawner.")} == {
        "GPUSpawner",
        "GPUSpawnerMixin",
    }
    ours = {name: trait for name, trait in GPUSpawner.class_traits(config=True).items() if name.startswith("gpu_")}
    assert [name for name, trait in ours.items() if not trait.help] == []
