"""Jobs of batch/v1, as Kubernetes's Job controller treats them: pure functions from a Job and its pods to what is next.

spec, pods   what the Job asks for, and what its pods say
standing     how the Job stands: what is on record, and what came since
verdict      whether it is to end, and why
scaling      how many pods it should have, and which are too many
tracking     how each pod that ends is counted exactly once
plan         all of these together
"""
