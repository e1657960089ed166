"""The lease: its request, its transitions, its times and its end."""
