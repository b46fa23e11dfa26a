"""The data of a pack: a batch of each seed at every step."""

from collections.abc import Iterator, Sequence

import lightning.pytorch as L

from ablate.data import Batch, Loader
from ablate.pack.packed import Packed


class PackLoader:
    """The batches of several loaders of equal length, side by side."""

    def __init__(self, loaders: Sequence[Loader]):
        self.loaders = loaders

    def __len__(self) -> int:
        return len(self.loaders[0])

    def __iter__(self) -> Iterator[tuple[Batch, ...]]:
        return zip(*self.loaders, strict=True)

    def state_dict(self) -> dict[str, int]:
        return self.loaders[0].state_dict()

    def load_state_dict(self, state: dict[str, int]) -> None:
        for loader in self.loaders:
            loader.load_state_dict(state)


class PackData(L.LightningDataModule):
    """Each seed's own data."""

    def __init__(self, pack: Sequence[Packed]):
        super().__init__()
        self.data = [one.run.data for one in pack]

    def setup(self, stage: str) -> None:
        for data in self.data:
            data.trainer = self.trainer

    def train_dataloader(self) -> PackLoader:
        return PackLoader([data.train_dataloader() for data in self.data])

    def val_dataloader(self) -> PackLoader:
        return PackLoader([data.val_dataloader() for data in self.data])
