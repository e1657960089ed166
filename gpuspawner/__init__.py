"""GPU workspaces for JupyterHub: one GPU request, one quota, one lifecycle."""

__version__ = "1.0.0"
