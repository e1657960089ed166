"""What programs that act for people leave in the store: their tokens, and what was answered to their keys."""
