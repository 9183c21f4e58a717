"""`batchyard submit`: a command under a queue, as a Job that any cluster with Kueue takes."""
