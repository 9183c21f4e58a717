variable "cluster" {
  description = "The id of the cluster."
  type        = string
}

variable "zones" {
  description = "The zones of pools that name none."
  type        = list(string)
}

variable "node_pools" {
  description = "The pools, by name, as the platform's own variable of that name describes them."
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
  description = "The boot disk of each node; a pool may say another type."
  type        = object({ size_gb = number, type = string })
}

variable "gpu_driver" {
  description = "Which driver GKE installs: DEFAULT, LATEST or INSTALLATION_DISABLED."
  type        = string
}

variable "image_streaming" {
  description = "Whether containers start before their image is there whole."
  type        = bool
}

variable "nodes_service_account" {
  description = "Who the nodes are."
  type        = string
}
