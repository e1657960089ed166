"""What administrators do from the command line: the same REST API that the console's dialogs use."""
