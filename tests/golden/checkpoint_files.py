"""Writes files of torch and safetensors for tests/checkpoint: python checkpoint_files.py FOLDER"""

import collections
import os
import pickle
import struct
import sys
import zipfile

import torch
from safetensors.torch import save_file

DTYPES = [
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.float64,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
]


def every_dtype():
    generator = torch.Generator().manual_seed(7)
    tensors = {}
    for dtype in DTYPES:
        values = torch.randn(3, 5, generator=generator) * 20
        values = (
            values > 0 if dtype is torch.bool else values.abs() if dtype is torch.uint8 else values
        )
        tensors[str(dtype).removeprefix("torch.")] = values.to(dtype)
    tensors["scalar"] = torch.tensor(3.5)
    tensors["empty"] = torch.empty(0, 4)
    return tensors


def views():
    base = torch.arange(60, dtype=torch.float32)
    grid = base.view(5, 12)
    tied = torch.randn(4, 3, generator=torch.Generator().manual_seed(1)).bfloat16()
    return collections.OrderedDict(
        transposed=grid.t(),
        columns=grid[:, 3:7],
        steps=base[5::7],
        rows=grid[2:4],
        expanded=base[3:4].expand(2, 6),
        permuted=base.view(3, 4, 5).permute(2, 0, 1),
        embed=tied,
        head=tied,
        parameter=torch.nn.Parameter(grid[1:3, ::2]),
        half=grid.half().t(),
        nothing=base[60:],
    )


def rewrite_archive(source, target, change):
    """Copies a zip archive entry by entry; change(name, bytes) gives the new bytes."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as new:
        for name in old.namelist():
            new.writestr(name, change(name, old.read(name)))


def to_zip64(source, target):
    """Moves every size and offset of the central directory into zip64 extra fields."""
    with zipfile.ZipFile(source) as archive:
        infos = archive.infolist()
        start = archive.start_dir
    with open(source, "rb") as file:
        data = file.read(start)
    directory = b""
    for info in infos:
        name = info.filename.encode()
        extra = struct.pack("<HHQQQ", 1, 24, info.file_size, info.file_size, info.header_offset)
        directory += (
            struct.pack(
                "<IHHHHHHIIIHHHHHII",
                0x02014B50,
                45,
                45,
                0,
                0,
                0,
                0,
                info.CRC,
                0xFFFFFFFF,
                0xFFFFFFFF,
                len(name),
                len(extra),
                0,
                0,
                0,
                0,
                0xFFFFFFFF,
            )
            + name
            + extra
        )
    end64 = start + len(directory)
    tail = struct.pack(
        "<IQHHIIQQQQ", 0x06064B50, 44, 45, 45, 0, 0, len(infos), len(infos), len(directory), start
    )
    tail += struct.pack("<IIQI", 0x07064B50, 0, end64, 1)
    tail += struct.pack("<IHHHHIIH", 0x06054B50, 0, 0, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0)
    with open(target, "wb") as file:
        file.write(data + directory + tail)


class Runs:
    """Unpickled by Python, this calls a function of the operating system."""

    def __init__(self, function, argument):
        self.call = (function, (argument,))

    def __reduce__(self):
        return self.call


def main(folder):
    os.chdir(folder)
    save_file(every_dtype(), "dtypes.safetensors", metadata={"format": "pt", "note": "caf\u00e9"})
    torch.save(every_dtype(), "dtypes.bin")
    torch.save(every_dtype(), "protocol4.bin", pickle_protocol=4)
    save_file({k: v.detach().clone().contiguous() for k, v in views().items()}, "views.safetensors")
    torch.save(views(), "views.bin")
    to_zip64("views.bin", "views64.bin")
    module = torch.nn.Linear(3, 2)
    torch.save(module.state_dict(), "module.bin")  # a state dict with its _metadata
    save_file(dict(module.state_dict()), "module.safetensors")
    torch.save({"w": torch.ones(2), "step": 3, "args": [1.5, None, "x", (True,)]}, "mixed.bin")
    torch.save(every_dtype(), "legacy.bin", _use_new_zipfile_serialization=False)
    torch.save(torch.ones(2), "bare.bin")
    torch.save({"w": torch.complex(torch.ones(2), torch.ones(2)).conj().imag}, "negated.bin")
    torch.save(module, "whole_module.bin")
    rewrite_archive(
        "dtypes.bin",
        "big_endian.bin",
        lambda name, data: b"big" if name.endswith("byteorder") else data,
    )
    for title, function, argument in [
        ("system", os.system, "touch executed"),
        ("eval", eval, "open('executed', 'w')"),
    ]:
        hostile = pickle.dumps({"w": Runs(function, argument)}, protocol=2)
        rewrite_archive(
            "dtypes.bin",
            f"{title}.bin",
            lambda name, data: hostile if name.endswith("data.pkl") else data,
        )


main(sys.argv[1])
