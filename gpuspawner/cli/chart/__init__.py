"""What the helm chart asks of the package: the secret that its Jobs make, and the values for Zero to JupyterHub."""
