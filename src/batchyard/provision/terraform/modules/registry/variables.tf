variable "repositories" {
  description = "The repositories by name, and the location of each: a region, or us, europe or asia."
  type        = map(string)
}

variable "reader" {
  description = "Who may read images, as policies name it: the nodes."
  type        = string
}
