"""What programs of people ask: a login by a code, their tokens, a start."""
