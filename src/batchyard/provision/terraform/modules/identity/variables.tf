variable "project" {
  description = "The project in which the nodes write logs and metrics."
  type        = string
}

variable "name" {
  description = "The name of the cluster. An account's id has 30 characters at most: a long name is cut."
  type        = string
}
