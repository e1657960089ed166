"""What is stored of a person: seen and exported by themselves, and forgotten by an administrator."""
