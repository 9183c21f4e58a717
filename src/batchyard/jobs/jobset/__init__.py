"""JobSet controller: creates the Jobs of a JobSet, applies the policies of the JobSet, and writes its status.

A reconcile of a JobSet sorts its Jobs by state (`spec`), counts them, and then takes the first matching branch
(`policies`):

    finished            its active Jobs are deleted
    a Job has failed    failure policy: the JobSet fails, or all its Jobs are recreated in the next restart attempt
    enough succeeded    success policy: the JobSet is complete
    else                startup policy: the Jobs of the next replicated jobs are created (`controller`), and suspended
                        or resumed with the JobSet

The conditions and the restart attempt, on the JobSet and on its Jobs, are the only state. `exclusive_placement` handles
pods of Jobs that need an exclusive topology domain.

Source: pkg/controllers of JobSet at its default feature gates (RestartJob, InPlaceRestart and ElasticJobSet are off).
Volume claims (spec.volumeClaimPolicies) are ignored, because volumes are not supported here.
"""
