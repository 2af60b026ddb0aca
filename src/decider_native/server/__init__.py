"""An HTTP server over one `Decider` that TypeSafe, OpenAI and judge clients already speak to.

It needs the extra ``decider-native[server]``. ``decider-native serve`` runs it; `create_app` is its ASGI app.
"""

from .app import create_app
from .settings import Settings

__all__ = ["Settings", "create_app"]
