"""What administrators do with messages, as events of the audit."""

from __future__ import annotations

from gpuspawner.core.leases.events import TextEvent


class MessageSent(TextEvent):
    """An administrator sends people a message; ``text`` says to whom, until when, and what."""

    name, words = "message sent", "Sent a message"


class MessageWithdrawn(TextEvent):
    """An administrator takes it from the pages."""

    name, words = "message withdrawn", "Withdrew a message"
