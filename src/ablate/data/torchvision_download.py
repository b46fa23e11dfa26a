"""Downloads torchvision's data sets into our cache, one process at a time."""

import socket
from pathlib import Path

from ablate.data.source import PATIENCE, cache
from ablate.errors import UserError, first_line


def download(name: str) -> Path:
    """The root folder for `torchvision.datasets.<name>`, with its files, checked each time."""
    import torchvision
    from filelock import FileLock

    folder = cache() / "torchvision"
    patience = socket.getdefaulttimeout()
    socket.setdefaulttimeout(PATIENCE)  # torchvision sets no timeout
    try:
        with FileLock(folder.with_suffix(".lock")):
            getattr(torchvision.datasets, name)(folder, download=True)
    except (OSError, RuntimeError) as error:
        reason = first_line(error).rstrip(": ")
        raise UserError(
            f"cannot download {name} ({reason}); data.root=FOLDER uses a local copy"
        ) from None
    finally:
        socket.setdefaulttimeout(patience)
    return folder
