variable "region" {
  description = "The region of the repository: that of the nodes, so that images are near."
  type        = string
}

variable "repository" {
  description = "The name of the repository."
  type        = string
}

variable "reader" {
  description = "Who may read images, as policies name it: the nodes."
  type        = string
}
