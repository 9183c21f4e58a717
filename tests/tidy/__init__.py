"""Style rules that no linter has: each is a function that returns the violations of a file."""
