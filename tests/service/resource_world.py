"""Custom resources in a fake cluster, and the operator of a service for them."""

import asyncio
import contextlib
from dataclasses import replace

from service_world import Killed

from gpuspawner.backends.custom_resources.base import Resource
from gpuspawner.service.custom_resources.controller import Operator

SPEC = {"user": "ada", "server": "", "template": "pytorch", "lifetime": "8h"}


class Cluster:
    """A fake cluster: its resources by name, and the names of all status updates. It outlives the service."""

    def __init__(self):
        self.there, self.told, self.refusal, self.is_going = {}, [], "", False

    def apply(self, name, **changes):
        before = self.there.get(name)
        spec = {**(before.spec if before else SPEC), **changes}
        new = before or Resource(name, f"uid-{name}", "1", name)
        self.there[name] = replace(new, spec=spec, generation=new.generation + bool(before))

    def change(self, resource, **changes):
        if (here := self.there.get(resource.name)) is not None and here.uid == resource.uid:
            self.there[resource.name] = replace(here, **changes)
            if self.there[resource.name].deleting and not self.there[resource.name].held:
                del self.there[resource.name]

    async def requests(self):
        return tuple(self.there.values())

    async def refuses(self):
        return self.refusal

    async def going(self):
        return self.is_going

    async def make(self, name, lease_id, spec):
        self.there.setdefault(name, Resource(name, f"uid-{name}", "1", name, held=True, of_lease=lease_id, spec=spec))

    async def tell(self, resource, status):
        self.told.append(resource.name)
        self.change(resource, status=status)

    async def hold(self, resource):
        self.change(resource, held=True)

    async def release(self, resource):
        self.change(resource, held=False)

    async def delete(self, resource):
        self.change(resource, deleting=True)


class OperatorProcess:
    """The operator of one service. A killed service writes nothing more."""

    def __init__(self, world, cluster):
        self.world, self.cluster = world, cluster
        self.boot()

    def boot(self, life=None):
        self.world.boot(life)
        self.operator = Operator(self.world.parts, Dying(self.cluster, self.world))

    async def rounds(self, count=6):
        """Run rounds of the service and of its operator."""
        for _ in range(count):
            with contextlib.suppress(Killed):
                await self.world.round()
                await self.operator.round()
                while tasks := list(self.operator._acts._tasks.values()):
                    await asyncio.gather(*tasks, return_exceptions=True)
            self.world.clock.advance(2.0)

    def status(self, name):
        return self.cluster.there[name].status


class Dying:
    """The cluster as one process of the service uses it."""

    def __init__(self, cluster, world):
        self._cluster, self._life = cluster, world.life

    def __getattr__(self, name):
        async def call(*arguments):
            if name in {"requests", "refuses", "going"}:
                return await getattr(self._cluster, name)(*arguments)
            return await self._life.effect(lambda: asyncio.ensure_future(getattr(self._cluster, name)(*arguments)))

        return call
