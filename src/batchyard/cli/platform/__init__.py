"""The commands `batchyard platform`: plan, render, create, status and destroy a whole platform from one file."""
