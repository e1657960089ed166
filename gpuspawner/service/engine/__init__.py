"""The lease engine: it observes hub and backend, decides what follows for each lease, and carries it out."""
