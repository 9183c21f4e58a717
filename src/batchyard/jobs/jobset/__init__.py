"""The lifecycle of a JobSet: which Jobs it has, what their ends mean, and what its status says.

A look at a JobSet sorts its Jobs (`children`), counts them (`statuses`) and then takes the first of these ways:

    finished            its Jobs that still run are deleted
    a Job has failed    `failure`: the JobSet fails, or all of its Jobs are made anew under the next restart attempt
    enough succeeded    `success`: the JobSet is complete
    else                `startup`: the replicated jobs whose turn it is get their Jobs (`child_job`), and these are
                        suspended or let go (`resumption`) with the JobSet

`status_draft` is the only place where conditions, restarts and the terminal state change. The conditions and the
restart attempt, on the JobSet and on its Jobs, are the whole state: nothing is remembered elsewhere. `exclusive` is
about pods: those of a Job that has a topology domain to itself.

Source: pkg/controllers of JobSet at its default feature gates (RestartJob, InPlaceRestart and ElasticJobSet are off).
Volume claims (spec.volumeClaimPolicies) are left alone: nothing here has volumes.
"""
