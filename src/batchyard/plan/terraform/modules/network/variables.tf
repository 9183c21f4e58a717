variable "name" {
  description = "The name of the VPC, its subnet, its router and the NAT."
  type        = string
}

variable "region" {
  description = "The region of the subnet and the router."
  type        = string
}

variable "network" {
  description = "The ranges of nodes, pods and services, as CIDRs."
  type        = object({ nodes = string, pods = string, services = string })
}
