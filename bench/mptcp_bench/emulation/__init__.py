"""Path emulation on a middle hop: delay, jitter and loss by netem where the kernel has it, else in user space.

``model`` says what a direction of a path does to packets (pure); ``netem`` turns that into tc(8) arguments (pure);
``userspace`` builds and runs the emulator behind the same interface. Rate is shaped by the kernel (TBF) in both cases.
"""
