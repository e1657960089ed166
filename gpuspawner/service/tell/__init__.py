"""What people are told: views, sentences, messages and metrics."""
