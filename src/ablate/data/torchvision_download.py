"""Image sets of torchvision, downloaded into our cache by one process at a time."""

import socket
from pathlib import Path
from typing import Any, ClassVar

from ablate.data import digest
from ablate.data.images import Arrays, Images, Source
from ablate.data.source import PATIENCE, cache
from ablate.data.split import VALIDATION, hold_out
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


class TorchvisionImages(Images):
    """The official test split is the test split; the validation split is held out of the training
    split by a hash of each image's number.

    side: pixels of an image. title: the name in torchvision. md5: of the published files; identify
    the data set.
    """

    side: ClassVar[int]
    title: ClassVar[str]
    md5: ClassVar[str | list[str]]

    def __init__(self, *, root: str | None, **options: Any) -> None:
        super().__init__(**options)
        self.root = root

    def fingerprint(self) -> str:
        return digest(self.title, self.md5, "hold_out", VALIDATION)

    def divided(self, everything: Arrays, test: Arrays) -> dict[str, Source]:
        """The three splits. everything: the official training split."""
        train, val = hold_out([f"{self.title}/{n}".encode() for n in range(len(everything.labels))])
        return {"train": everything.subset(train), "val": everything.subset(val), "test": test}
