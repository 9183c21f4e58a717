variable "project" {
  description = "The id of the Google Cloud project of the platform."
  type        = string

  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{4,28}[a-z0-9]$", var.project))
    error_message = "Use a project id of 6 to 30 lowercase letters, digits and dashes, a letter first."
  }
}

variable "name" {
  description = "The name of the cluster, and of the network and the router; the nodes' service account begins with it."
  type        = string

  validation {
    condition     = can(regex("^[a-z]([a-z0-9-]{0,38}[a-z0-9])?$", var.name))
    error_message = "Use a cluster name of up to 40 lowercase letters, digits and dashes, a letter first."
  }
}

variable "region" {
  description = "The region of the cluster, such as us-central1."
  type        = string
}

variable "zones" {
  description = "The zones of the cluster. A pool without zones has nodes in all of these."
  type        = list(string)

  validation {
    condition     = length(var.zones) > 0 && alltrue([for zone in var.zones : startswith(zone, "${var.region}-")])
    error_message = "Name at least one zone, and only zones of the region."
  }
}

variable "labels" {
  description = "Labels of all resources that support labels; Cloud Billing can report costs by label."
  type        = map(string)
  default     = {}
}

# --- network ---

variable "network" {
  description = <<-EOT
    The address ranges of nodes, pods, services and the control plane (a /28), as CIDRs. With `private_endpoint`, the
    control plane has no public address. `authorized` lists the networks that may reach the addresses of the control
    plane; if it is empty, every network may, with credentials.
  EOT
  type = object({
    nodes            = string
    pods             = string
    services         = string
    control_plane    = string
    private_endpoint = optional(bool, false)
    authorized       = optional(list(object({ name = string, cidr = string })), [])
  })

  validation {
    condition = alltrue([
      for cidr in [var.network.nodes, var.network.pods, var.network.services, var.network.control_plane] :
      can(cidrnetmask(cidr))
    ])
    error_message = "Write each range as an IPv4 CIDR such as 10.0.0.0/20."
  }

  validation {
    condition     = endswith(var.network.control_plane, "/28")
    error_message = "The control plane's range must be a /28."
  }
}

variable "webhook_ports" {
  description = "Ports of the pods' webhooks, except 443 and 10250, which GKE opens for the control plane itself."
  type        = list(number)
  default     = []
}

# --- cluster ---

variable "release_channel" {
  description = "The release channel, which determines how soon the cluster gets new versions of Kubernetes."
  type        = string
  default     = "REGULAR"

  validation {
    condition     = contains(["RAPID", "REGULAR", "STABLE", "EXTENDED"], var.release_channel)
    error_message = "The channel must be RAPID, REGULAR, STABLE or EXTENDED."
  }
}

variable "deletion_protection" {
  description = "Whether `terraform destroy` refuses to delete the cluster."
  type        = bool
  default     = true
}

variable "security_group" {
  description = "The group gke-security-groups@DOMAIN, with which RBAC can refer to groups of DOMAIN; null for no groups."
  type        = string
  default     = null

  validation {
    condition     = var.security_group == null || can(regex("^gke-security-groups@", var.security_group))
    error_message = "GKE requires a group with the name gke-security-groups@DOMAIN."
  }
}

variable "image_streaming" {
  description = "Whether containers start before their image is completely pulled."
  type        = bool
  default     = true
}

variable "managed_prometheus" {
  description = "Whether Google's managed Prometheus collects metrics, including those of GPUs, pods and JobSets."
  type        = bool
  default     = true
}

variable "cost_allocation" {
  description = "Whether Cloud Billing reports costs by namespace and label."
  type        = bool
  default     = true
}

variable "filestore" {
  description = "Whether pods can mount Filestore volumes (the CSI driver is enabled)."
  type        = bool
  default     = true
}

variable "autoscaling_profile" {
  description = "How soon unneeded nodes are removed: BALANCED, or OPTIMIZE_UTILIZATION, which is sooner."
  type        = string
  default     = "BALANCED"

  validation {
    condition     = contains(["BALANCED", "OPTIMIZE_UTILIZATION"], var.autoscaling_profile)
    error_message = "The profile must be BALANCED or OPTIMIZE_UTILIZATION."
  }
}

variable "auto_provisioning" {
  description = <<-EOT
    The limits of the whole cluster for node auto-provisioning: cores, gigabytes of memory, and accelerators by type.
    If it is empty, node auto-provisioning is disabled.
  EOT
  type        = list(object({ resource = string, min = optional(number, 0), max = number }))
  default     = []

  validation {
    condition     = length(var.auto_provisioning) == 0 || length(setsubtract(["cpu", "memory"], var.auto_provisioning[*].resource)) == 0
    error_message = "Node auto-provisioning requires limits of cpu and memory."
  }
}

# --- nodes ---

variable "disk" {
  description = "The boot disk of each node."
  type        = object({ size_gb = number, type = string })
  default     = { size_gb = 100, type = "pd-balanced" }

  validation {
    condition     = var.disk.size_gb >= 10
    error_message = "A boot disk must have at least 10 GB."
  }
}

variable "gpu_driver" {
  description = "The driver that GKE installs on nodes with GPUs; with INSTALLATION_DISABLED, a DaemonSet installs it."
  type        = string
  default     = "DEFAULT"

  validation {
    condition     = contains(["DEFAULT", "LATEST", "INSTALLATION_DISABLED"], var.gpu_driver)
    error_message = "The driver must be DEFAULT, LATEST or INSTALLATION_DISABLED."
  }
}

variable "node_pools" {
  description = <<-EOT
    The node pools, by name.
    `zones`: the zones with nodes; null for all zones of the cluster.
    `accelerator`: the GPUs of one machine.
    `node_count`: the number of nodes in each zone; with `autoscaling`, the initial number.
    `autoscaling`: bounds for all zones together (`total_min`, `total_max`), or for each zone (`min`, `max`).
    `provisioning`: standard, spot, flex-start (Dynamic Workload Scheduler, node by node) or queued (all at once).
    `reservation`: the only reservation that the pool consumes.
    `max_run_duration`: the time after which a machine is deleted, such as 3600s.
    `tpu_topology`: the topology of a TPU slice with several machines, such as 2x4. `compact`: compact placement.
    `disk_type`: the boot disk of machines that do not support the default type. `local_ssds`: built-in disks for pods.
  EOT
  type = map(object({
    machine_type = string
    zones        = optional(list(string))
    accelerator  = optional(object({ type = string, count = number }))
    node_count   = optional(number, 0)
    autoscaling = optional(object({
      total_min       = optional(number)
      total_max       = optional(number)
      min             = optional(number)
      max             = optional(number)
      location_policy = optional(string, "BALANCED")
    }))
    provisioning      = optional(string, "standard")
    reservation       = optional(string)
    max_run_duration  = optional(string)
    max_pods_per_node = optional(number)
    tpu_topology      = optional(string)
    compact           = optional(bool, false)
    disk_type         = optional(string)
    local_ssds        = optional(number, 0)
    labels            = optional(map(string), {})
    taints            = optional(list(object({ key = string, value = string, effect = string })), [])
  }))

  validation {
    condition     = alltrue([for name in keys(var.node_pools) : can(regex("^[a-z]([a-z0-9-]{0,38}[a-z0-9])?$", name))])
    error_message = "Use pool names of up to 40 lowercase letters, digits and dashes, a letter first."
  }

  validation {
    condition     = alltrue([for pool in values(var.node_pools) : contains(["standard", "spot", "flex-start", "queued"], pool.provisioning)])
    error_message = "The provisioning must be standard, spot, flex-start or queued."
  }

  validation {
    condition     = alltrue([for pool in values(var.node_pools) : pool.reservation == null || pool.provisioning == "standard"])
    error_message = "Only a pool with standard provisioning can have a reservation."
  }

  validation {
    condition     = alltrue([for pool in values(var.node_pools) : pool.provisioning != "queued" || pool.autoscaling != null])
    error_message = "A queued pool requires autoscaling, because it grows only for ProvisioningRequests."
  }

  validation {
    condition = alltrue([
      for pool in values(var.node_pools) : !pool.compact && pool.tpu_topology == null || length(coalesce(pool.zones, var.zones)) == 1
    ])
    error_message = "A pool with compact placement or a TPU topology must have exactly one zone: name it in `zones`."
  }

  validation {
    condition = alltrue(flatten([
      for pool in values(var.node_pools) : [
        for taint in pool.taints : contains(["NO_SCHEDULE", "PREFER_NO_SCHEDULE", "NO_EXECUTE"], taint.effect)
      ]
    ]))
    error_message = "The effect of a taint must be NO_SCHEDULE, PREFER_NO_SCHEDULE or NO_EXECUTE."
  }
}

variable "reservations" {
  description = "Machines to reserve, by the reservation's name. Do not list existing reservations."
  type = map(object({
    machine_type = string
    zone         = string
    count        = number
    accelerator  = optional(object({ type = string, count = number }))
  }))
  default = {}

  validation {
    condition     = alltrue([for reservation in values(var.reservations) : reservation.count > 0])
    error_message = "A reservation must have at least one machine."
  }
}

variable "future_reservations" {
  description = <<-EOT
    Machines to book for a time window, by the reservation's name. Times are in RFC 3339, such as 2026-12-01T20:00:00Z.
    `planning_status`: DRAFT reserves nothing and costs nothing. SUBMITTED requests the machines from Google. They are
    billed once Google approves the request, and a request in calendar mode cannot be canceled, changed or deleted.
  EOT
  type = map(object({
    machine_type    = string
    zone            = string
    count           = number
    start_time      = string
    end_time        = string
    planning_status = optional(string, "DRAFT")
    accelerator     = optional(object({ type = string, count = number }))
  }))
  default = {}

  validation {
    condition     = alltrue([for reservation in values(var.future_reservations) : reservation.count > 0])
    error_message = "A future reservation must have at least one machine."
  }

  validation {
    condition = alltrue([
      for reservation in values(var.future_reservations) : contains(["DRAFT", "SUBMITTED"], reservation.planning_status)
    ])
    error_message = "The planning status of a future reservation must be DRAFT or SUBMITTED."
  }

  validation {
    condition = alltrue([
      for reservation in values(var.future_reservations) :
      try(timecmp(reservation.start_time, reservation.end_time) < 0, false)
    ])
    error_message = "A future reservation must start before it ends; write both times as in 2026-12-01T20:00:00Z."
  }

  validation {
    condition     = length(setintersection(keys(var.reservations), keys(var.future_reservations))) == 0
    error_message = "Give each future reservation a name that no other reservation has."
  }
}

# --- images and teams ---

variable "repository" {
  description = "The name of the repository in Artifact Registry."
  type        = string
}

variable "more_repositories" {
  description = "The location of each further repository, by its name: a region, or us, europe or asia."
  type        = map(string)
  default     = {}
}

variable "teams" {
  description = <<-EOT
    The identity of each team's pods: the Kubernetes ServiceAccount `service_account` in `namespace` acts as the Google
    service account `account`, which has `roles` in the project, and reads and writes objects in `buckets`.
  EOT
  type = map(object({
    namespace       = string
    service_account = string
    account         = string
    roles           = optional(list(string), [])
    buckets         = optional(list(string), [])
  }))
  default = {}

  validation {
    condition     = alltrue([for team in values(var.teams) : can(regex("^[a-z][a-z0-9-]{4,28}[a-z0-9]$", team.account))])
    error_message = "Use service account ids of 6 to 30 lowercase letters, digits and dashes, a letter first."
  }

  validation {
    condition     = length(setintersection(["roles/owner", "roles/editor"], flatten(values(var.teams)[*].roles))) == 0
    error_message = "A team's pods must be neither owner nor editor of the project: name the roles that the pods need."
  }
}

variable "dashboards" {
  description = "Whether a GPU dashboard is created in Cloud Monitoring."
  type        = bool
  default     = true
}
