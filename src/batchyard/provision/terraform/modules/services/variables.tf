variable "project" {
  description = "The project whose APIs are enabled."
  type        = string
}
