"""Messages by mail and chat: their sentences and the sender."""
