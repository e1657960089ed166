"""Optional: custom resources. ``base`` is the interface, ``cluster`` reads and writes them in a Kubernetes cluster."""
