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
  description = "Ports of the pods' webhooks that need a firewall rule; empty if GKE opens all ports itself."
  type        = list(number)
}

variable "nodes_service_account" {
  description = "The email address of the nodes' service account."
  type        = string
}
