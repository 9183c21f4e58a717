variable "project" {
  description = "The project in which the nodes write logs and metrics."
  type        = string
}

variable "name" {
  description = "The name of the cluster; it is truncated, because an account's id has at most 30 characters."
  type        = string
}
