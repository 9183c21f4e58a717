"""The rules of style a linter does not know, each a function from a file to its violations."""
