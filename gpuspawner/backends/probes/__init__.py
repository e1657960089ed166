"""The probe of a workspace: its script and the strict reading of the output."""
