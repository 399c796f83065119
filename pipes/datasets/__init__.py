"""Data sets on disk: described by metadata.yaml, preprocessed once, mapped by every process."""

from hopline.pipes.datasets.builtin import BuiltinDataset
from hopline.pipes.datasets.dataset import Dataset, Task
from hopline.pipes.datasets.metadata import (
    OnDiskFeatureData,
    OnDiskFeatureDataDomain,
    OnDiskFeatureDataFormat,
    OnDiskMetaData,
    OnDiskTaskData,
    OnDiskTVTSet,
    OnDiskTVTSetData,
)
from hopline.pipes.datasets.ondisk import OnDiskDataset, OnDiskTask
from hopline.pipes.datasets.planted import planted_partition
from hopline.pipes.datasets.preprocess import preprocess_ondisk_dataset
from hopline.pipes.datasets.yaml_file import MetadataError

__all__ = [
    "BuiltinDataset",
    "Dataset",
    "MetadataError",
    "OnDiskDataset",
    "OnDiskFeatureData",
    "OnDiskFeatureDataDomain",
    "OnDiskFeatureDataFormat",
    "OnDiskMetaData",
    "OnDiskTVTSet",
    "OnDiskTVTSetData",
    "OnDiskTask",
    "OnDiskTaskData",
    "Task",
    "planted_partition",
    "preprocess_ondisk_dataset",
]
