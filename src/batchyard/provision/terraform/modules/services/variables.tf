variable "project" {
  description = "The project whose APIs are turned on."
  type        = string
}
