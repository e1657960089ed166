"""Pages for people whose programs ask the API: allowing a login, their tokens, the reference."""
