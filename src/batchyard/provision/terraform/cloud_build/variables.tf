variable "project" {
  description = "The id of the project of the platform."
  type        = string
}

variable "name" {
  description = "The name of the platform's cluster, from which the account has its name."
  type        = string
}

variable "state_bucket" {
  description = "The bucket in which Terraform keeps the platform's state. It is there before this is applied."
  type        = string
}

variable "teams" {
  description = "By team: the roles in the project that its pods have, and the buckets that they use."
  type        = map(object({ roles = list(string), buckets = list(string) }))
}
