variable "cluster" {
  description = "The id of the cluster."
  type        = string
}

variable "zones" {
  description = "The zones of pools without zones."
  type        = list(string)
}

variable "node_pools" {
  description = "The pools, by name, as described for the root variable node_pools."
  type = map(object({
    machine_type = string
    zones        = list(string)
    accelerator  = object({ type = string, count = number })
    node_count   = number
    autoscaling = object({
      total_min       = number
      total_max       = number
      min             = number
      max             = number
      location_policy = string
    })
    provisioning      = string
    reservation       = string
    max_run_duration  = string
    max_pods_per_node = number
    tpu_topology      = string
    compact           = bool
    disk_type         = string
    local_ssds        = number
    labels            = map(string)
    taints            = list(object({ key = string, value = string, effect = string }))
  }))
}

variable "disk" {
  description = "The boot disk of each node; a pool may override the type."
  type        = object({ size_gb = number, type = string })
}

variable "gpu_driver" {
  description = "The GPU driver that GKE installs: DEFAULT, LATEST or INSTALLATION_DISABLED."
  type        = string
}

variable "image_streaming" {
  description = "Whether containers start before their image is completely pulled."
  type        = bool
}

variable "nodes_service_account" {
  description = "The email address of the nodes' service account."
  type        = string
}
