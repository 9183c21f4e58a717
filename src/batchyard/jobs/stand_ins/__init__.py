"""Controllers for kinds of jobs whose own controllers do not run (`batchyard up --job-controllers`).

definitions     the CustomResourceDefinitions of these kinds
new_objects     the objects that the controllers create: defaults and validation; conversion of fields
training_jobs   the jobs of Kubeflow's training operator: fields, validation, pods, environment
kubeflow        their controller
ray_nodes       RayClusters as values: fields, validation
ray_pods        their pods and Services, and the command lines of Ray
ray             the controller of RayClusters
ray_submission  RayJobs as values: fields, validation, the Job that submits the Ray job
ray_jobs        the controller of RayJobs
"""
