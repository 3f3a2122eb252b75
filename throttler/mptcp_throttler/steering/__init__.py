"""How a connection's data are spread over its paths: the steering modes, each a file in ``modes``. Pure.

The policy takes from a mode what may be written under ``steer``; ``stages.steering`` gives it samples and has its
actions carried out.
"""
