"""The command `batchyard submit`: it runs a command as a Job in a queue, on any cluster with Kueue."""
