"""JobSets: the controller of their Jobs, and the one that keeps a Job's pods in one topology domain.

What Kueue makes of JobSets is elsewhere (batchyard.controllers.jobs).
"""
