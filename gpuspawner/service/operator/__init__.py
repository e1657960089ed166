"""Custom resources as a second door to the same service: what ``core.resources`` decides is carried out here.

What is decided, and for whom, is the service's alone, whose one-writer election it needs. A process of its own may see
and write the resources for it (``relay``): it shows what is there, and is answered by what it is to write.
"""
