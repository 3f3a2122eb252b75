"""Path emulation on a middle hop: delay, jitter and loss by netem where the kernel has it, else in user space. Pure.

``model`` says what a direction of a path does to packets; ``netem`` turns that into tc(8) arguments, ``userspace`` into
those of our own emulator (``native/``, in C), which ``testbed.hops`` builds and runs where it is needed. Rate is shaped
by the kernel (TBF) in both cases.
"""
