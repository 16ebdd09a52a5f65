"""leakscope: what could the other side see of my images, from what I send?

The way through, left to right::

    model + private batch ──observe──▶ Observation ──attack──▶ Reconstruction ──score──▶ Scores

The public names stand in ``__init__.pyi``; each is imported when it is first used, so that asking for the version or
reading a record does not load torch.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
__version__ = "0.1.0"
