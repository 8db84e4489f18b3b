"""`tfdist pack`: a folder of images as a few large files."""

from __future__ import annotations

from tfdist.cli.arguments import Parser, count
from tfdist.errors import EXIT_DONE
from tfdist.runtime.startup import start_tensorflow


def main(argv: list[str]) -> int:
    """Packs it; returns the exit code.

    Raises:
        ConfigError: The arguments are wrong, or the folder cannot be packed.
    """
    parser = Parser(
        "tfdist pack",
        "Write the images of FOLDER, laid out as FOLDER/<split>/<class>/, as a data set of TFDS: "
        "a few large files instead of many small ones, which shared disks and many workers like.",
        examples=("tfdist pack /data/flowers flowers --data-dir /data/tfds --shards 64",),
    )
    parser.add_argument("folder", metavar="FOLDER", help="the images")
    parser.add_argument("name", metavar="NAME", help="of the data set, as in --dataset NAME")
    parser.add_argument("--data-dir", required=True, metavar="DIR", help="where data sets are kept")
    parser.add_argument(
        "--shards", type=count, metavar="N", help="files of each split (by their size)"
    )
    options = parser.parse_args(argv)
    if options.shards == 0:
        parser.error("--shards is 1 or more")
    start_tensorflow()
    from tfdist.data.pack import pack

    written = pack(options.folder, options.name, options.data_dir, shards=options.shards)
    found = ", ".join(f"{number:,} of {split}" for split, number in written.items())
    print(f"{options.name}: {found}")
    print(f"train on it: tfdist train --dataset {options.name} --data-dir {options.data_dir}")
    return EXIT_DONE
