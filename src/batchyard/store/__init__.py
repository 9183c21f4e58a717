"""An object store with revisions and watches, like etcd's, which treats the objects of all kinds alike."""
