"""Optional: devices that pods claim by dynamic resource allocation (DRA), counted like resources of nodes and pods."""
