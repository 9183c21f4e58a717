"""Controllers for kinds of jobs whose own controllers do not run (`batchyard up --job-controllers`).

definitions     the CustomResourceDefinitions of these kinds
new_objects     the objects that the controllers create: defaults and validation
training_jobs   the jobs of Kubeflow's training operator: fields, validation, pods, environment
kubeflow        their controller
"""
