"""Controllers for kinds of jobs whose own controllers do not run (`batchyard up --job-controllers`).

definitions   the CustomResourceDefinitions of these kinds
kubeflow      the controller of the jobs of Kubeflow's training operator
"""
