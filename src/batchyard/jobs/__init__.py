"""Controllers and queue integrations of the job kinds."""
