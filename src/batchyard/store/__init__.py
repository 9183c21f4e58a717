"""An object store with revisions and watches, like etcd; it treats objects of all kinds alike."""
