variable "repositories" {
  description = "The location of each repository, by its name: a region, or us, europe or asia."
  type        = map(string)
}

variable "reader" {
  description = "The account that may read images, in the form of IAM policies: the nodes' service account."
  type        = string
}
