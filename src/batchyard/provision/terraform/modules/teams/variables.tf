variable "project" {
  description = "The project in which the teams have roles."
  type        = string
}

variable "workload_pool" {
  description = "The cluster's workload identity pool."
  type        = string
}

variable "teams" {
  description = "By team: its namespace and service account in the cluster, its Google service account, roles and buckets."
  type = map(object({
    namespace       = string
    service_account = string
    account         = string
    roles           = list(string)
    buckets         = list(string)
  }))
}
