variable "name" {
  description = "The name of the VPC, its subnet, its router and the NAT."
  type        = string
}

variable "region" {
  description = "The region of the subnet and the router."
  type        = string
}

variable "network" {
  description = "The ranges of nodes, pods, services and the control plane, as CIDRs."
  type        = object({ nodes = string, pods = string, services = string, control_plane = string })
}

variable "webhook_ports" {
  description = "Ports of pods at which the control plane asks webhooks; none: the ports that it may reach by itself."
  type        = list(number)
}

variable "nodes_service_account" {
  description = "Who the nodes are."
  type        = string
}
