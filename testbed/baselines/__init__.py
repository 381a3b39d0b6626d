"""What a bounded-loss transport is compared with: the same training over TCP, as a star and as torch's all-reduce.

Nothing is lost here, so rounds have one pass and a tolerance of 0. The ends have the interface of `protocol.Server` and
`protocol.Worker`; `testbed.ends` chooses.
"""
