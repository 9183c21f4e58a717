variable "cluster" {
  description = "The name of the cluster whose GPUs are shown."
  type        = string
}
