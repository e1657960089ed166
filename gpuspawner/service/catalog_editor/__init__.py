"""The catalog in the console: its versions, changes with a preview, and roll-back.

A change writes the catalog's file. The service follows the file as it does after any other change of it.
"""
