"""The kubelet of this machine: controllers over its pods and what runs of them."""
