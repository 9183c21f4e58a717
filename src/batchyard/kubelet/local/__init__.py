"""Local kubelet: pure functions from pods, their runs and the objects they name to run requests and statuses."""
