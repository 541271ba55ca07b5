"""Energy of a job: a sampler in a thread of the launcher, and the arithmetic on its samples.

Begin with `sampler.py` (the thread, one on each node) and `of_result` of `section.py`
(the launcher puts the energy into the result). `nvidia.py` and `amd.py` each read one kind of counter,
`gpu_reader.py` finds the GPUs of the job. `node_energy.py` and `section.py` turn samples into
`energy_metrics`. The package may import `train.job`, `train.machine` and `utils`; it imports vendor libraries and zeus
on use, in the sampler only.
"""
