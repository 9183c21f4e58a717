variable "project" {
  description = "The id of the project of the platform."
  type        = string
}

variable "name" {
  description = "The name of the platform's cluster; the name of the service account begins with it."
  type        = string
}

variable "state_bucket" {
  description = "The existing bucket in which Terraform stores the platform's state."
  type        = string
}

variable "teams" {
  description = "By team: the roles of the team's pods in the project, and the buckets that the pods use."
  type        = map(object({ roles = list(string), buckets = list(string) }))
}
