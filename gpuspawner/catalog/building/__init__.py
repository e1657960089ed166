"""From what an administrator wrote to the catalog: `extends`, references, defaults, what only two entries get wrong."""
