"""GPU workspaces for JupyterHub: one GPU request, one quota, one lifecycle."""

__version__ = "0.1.0"
