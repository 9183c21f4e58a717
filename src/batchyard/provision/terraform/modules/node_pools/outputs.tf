output "names" {
  description = "The names of the pools."
  value       = sort(keys(google_container_node_pool.this))
}
