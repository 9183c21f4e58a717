variable "project" {
  description = "The project of the cluster, which is part of the name of the workload identity pool."
  type        = string
}

variable "name" {
  description = "The name of the cluster."
  type        = string
}

variable "region" {
  description = "The region of the cluster's control plane."
  type        = string
}

variable "zones" {
  description = "The default zones of nodes."
  type        = list(string)
}

variable "network" {
  description = "The id of the VPC."
  type        = string
}

variable "subnetwork" {
  description = "The id of the subnet."
  type        = string
}

variable "pods_range_name" {
  description = "The name of the secondary range of pods."
  type        = string
}

variable "services_range_name" {
  description = "The name of the secondary range of services."
  type        = string
}

variable "control_plane_cidr" {
  description = "A /28 for the control plane, as a CIDR. No network that is connected to this one may use it."
  type        = string
}

variable "private_endpoint" {
  description = "Whether the control plane has no public address. The DNS endpoint exists in both cases."
  type        = bool
}

variable "authorized_networks" {
  description = "The networks that may reach the addresses of the control plane; if empty, all networks may."
  type        = list(object({ name = string, cidr = string }))
}

variable "release_channel" {
  description = "The release channel: RAPID, REGULAR, STABLE or EXTENDED."
  type        = string
}

variable "deletion_protection" {
  description = "Whether Terraform refuses to delete the cluster."
  type        = bool
}

variable "security_group" {
  description = "The group gke-security-groups@DOMAIN, or null."
  type        = string
}

variable "image_streaming" {
  description = "Whether containers on auto-provisioned nodes start before their image is completely pulled."
  type        = bool
}

variable "managed_prometheus" {
  description = "Whether Google's managed Prometheus collects metrics."
  type        = bool
}

variable "cost_allocation" {
  description = "Whether Cloud Billing reports costs by namespace and label."
  type        = bool
}

variable "autoscaling_profile" {
  description = "How soon unneeded nodes are removed: BALANCED or OPTIMIZE_UTILIZATION."
  type        = string
}

variable "auto_provisioning" {
  description = "The limits of node auto-provisioning by resource; if empty, node auto-provisioning is disabled."
  type        = list(object({ resource = string, min = number, max = number }))
}

variable "disk" {
  description = "The boot disk of auto-provisioned nodes."
  type        = object({ size_gb = number, type = string })
}

variable "nodes_service_account" {
  description = "The email address of the service account of auto-provisioned nodes."
  type        = string
}

variable "filestore" {
  description = "Whether the CSI driver of Filestore is enabled."
  type        = bool
}
