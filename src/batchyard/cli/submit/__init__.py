"""The command `batchyard submit`: runs the user's command as a Job in a queue, on any cluster with Kueue."""
