"""A cluster in virtual time: the same algorithm, the same session, real gradients, no machines.

This room and the function in it have one name: ``from omnivore_ray import simulate`` gives the
room, and calling it calls `omnivore_ray.simulate.run.simulate`.
"""

import sys
from types import ModuleType
from typing import Any


class _CallableRoom(ModuleType):
    def __call__(self, *arguments: Any, **options: Any) -> Any:
        """See `omnivore_ray.simulate.run.simulate`."""
        from omnivore_ray.simulate.run import simulate

        return simulate(*arguments, **options)


sys.modules[__name__].__class__ = _CallableRoom
