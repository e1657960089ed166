"""Where workspaces live.

Belongs here: the seam (``base``), its official fake (``fake``), the probe script and the strict reading of its output,
and one package per place: ``local`` (processes of this machine). A backend observes the fleet and the workspaces, runs
the probe, and ends what it is told to end.
Never here: a decision (who gets a GPU, who is idle, who is stopped), the store, HTTP, JupyterHub. Nothing is imported
here: a workspace imports ``gpuspawner.backends.local`` and must not pay for the service's imports.
"""
