"""What looks at the hub, the backends and the workspaces, and keeps leases in step with them."""
