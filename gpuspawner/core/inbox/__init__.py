"""What a person is told of until they have read it, and messages of administrators."""
