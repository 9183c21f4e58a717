"""An object store with revisions and watches, as etcd's; it knows nothing of the objects' kinds."""
