"""One pod: what is made, refused, watched and read of it."""
