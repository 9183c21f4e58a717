"""The commands `batchyard platform`: plan, render, create, check and destroy a whole platform from a platform.yaml."""
