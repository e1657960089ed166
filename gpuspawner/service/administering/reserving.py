"""What a reservation would do: which GPUs count, and which are kept free for it."""

from __future__ import annotations

from dataclasses import replace

from gpuspawner.core.administering.restrictions import Measure, Restriction, hold_of
from gpuspawner.core.queue.holds import held_gpus, members_gpus
from gpuspawner.service.parts import Parts
from gpuspawner.service.tell.sentences import gpu_title


def reserved_words(parts: Parts, one: Restriction) -> str:
    """Return in sentences what a reservation does that is not made yet; "" for every other restriction."""
    if one.measure is not Measure.RESERVE:
        return ""
    seen, hold = parts.allocator.observed.snapshot(), hold_of(one)
    with_it = replace(seen, rules=replace(seen.rules, holds=(*seen.rules.holds, hold)))
    slots = [slot for one in held_gpus(with_it) if one.hold == hold for slot in one.slots]
    theirs, used = members_gpus(hold, seen), {*seen.used, *(slot.gpu for slot in seen.others)}
    counted = sum(slot.gpu in theirs for slot in slots)
    free = sum(slot.gpu not in used for slot in slots)
    whom, kind = one.account.called(one.whom), gpu_title(one.target, parts.catalog)
    words = ""
    if counted:
        words = f" {whom[0].upper()}{whom[1:]} has {counted} {kind} in use, which count."
    if counted and counted == len(slots):
        more = len(theirs) + one.count
        return f"{words} So no other is kept free. To keep {one.count} more free, reserve {more}."
    later = len(slots) - counted - free
    words += f" {free} {'is' if free == 1 else 'are'} free and kept free from then on." if free else ""
    return words + (f" {later} {'is' if later == 1 else 'are'} in use by others, and kept once free." if later else "")
