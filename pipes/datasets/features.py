"""Features of the feature store: checked, and copied where the raw file cannot be mapped."""

from __future__ import annotations

from hopline.pipes.datasets.location import slug
from hopline.pipes.datasets.metadata import OnDiskFeatureData
from hopline.pipes.datasets.processed import StoredFeature
from hopline.pipes.datasets.workplace import Workplace
from hopline.pipes.datasets.yaml_file import Place

__all__ = ["store_feature"]


def store_feature(
    work: Workplace, number: int, entry: OnDiskFeatureData, place: Place
) -> StoredFeature:
    """Checks a feature; copies it unless the raw file can be mapped as it stands.

    Raises:
        MetadataError: unknown type, or a number of rows that is not that of the type.
    """
    raw = work.open(entry, place)
    domain = str(entry.domain)
    if domain != "graph":
        work.sizes.check_type(domain, entry.type, place)
        count = work.sizes.of(domain)[entry.type]
        if len(raw.array) != count:
            raise place.at("path").error(
                f"{entry.path} has {len(raw.array)} rows; expected {count}, one for each of "
                f"{work.sizes.describe(domain, entry.type)}"
            )
    shape = raw.array.shape if raw.array.ndim > 1 else (len(raw.array), 1)
    if raw.in_place and raw.array.ndim > 1:
        root, path = "dataset", entry.path
    else:
        root, path = "preprocessed", f"features/{number}-{slug(entry.name)}.npy"
        work.write(path, raw.array.dtype, shape, [raw.array])
    return StoredFeature.model_validate(
        {
            "domain": domain,
            "type": entry.type,
            "name": entry.name,
            "extra_fields": entry.model_extra or {},
            "array": {"root": root, "path": path, "dtype": raw.dtype, "shape": shape,
                      "in_memory": entry.in_memory},
        }
    )  # fmt: skip
