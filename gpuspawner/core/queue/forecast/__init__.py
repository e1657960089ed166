"""When those who wait will be served: the queue replayed into the future, by latest ends and by likely ones."""
