"""What administrators do: what they keep from being given or judged, and each of their acts as an event."""
