"""The machines of the cloud, as facts: what there is, what it costs, how long it takes, which nodes it makes."""
